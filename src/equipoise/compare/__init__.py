"""Compare combinations of methods: a grid of recipes, run in parallel, resumable, ranked and explained."""
