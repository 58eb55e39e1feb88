"""Described clusters: throughput of workers, links between them, failures, and the units they are written in."""
