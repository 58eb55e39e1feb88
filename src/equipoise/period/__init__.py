"""When do workers communicate?"""

from ..config.registry import exporter
from .base import Period as Period

__getattr__, __dir__ = exporter("period")
