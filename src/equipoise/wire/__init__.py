"""How do vectors travel: as they are, or compressed?"""

from ..config.registry import exporter
from .base import Wire as Wire

__getattr__, __dir__ = exporter("wire")
