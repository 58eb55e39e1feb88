"""Which combination wins: a grid of recipes, run in parallel, resumable, ranked, and explained."""
