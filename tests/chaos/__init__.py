"""Faults, drawn by a seed, over every family of methods: `python -m tests.chaos`, and a short version as tests."""
