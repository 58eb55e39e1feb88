"""In which order does a worker visit its examples?"""

from ..config.registry import exporter
from .base import Order as Order

__getattr__, __dir__ = exporter("order")
