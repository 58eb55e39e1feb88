"""What do workers exchange, and how do they combine it?"""

from ..config.registry import exporter
from .base import Sync as Sync

__getattr__, __dir__ = exporter("sync")
