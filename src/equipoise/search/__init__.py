"""The search of `equipoise plan`: which choices reach a goal soonest on a described cluster."""
