"""How many examples per step?"""

from ..config.registry import exporter
from .base import Batch as Batch

__getattr__, __dir__ = exporter("batch")
