"""Starting workers."""

from .start import launch as launch
