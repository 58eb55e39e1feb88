"""Starting workers."""

from .start import spawn as spawn
