"""The loop: for Equipoise's own (`train`) and for a user's (`attach`, `Sampler`)."""
