"""Starts workers."""

from .start import spawn as spawn
