"""Described clusters: speeds of workers, links between them, failures, and the units they are written in."""
