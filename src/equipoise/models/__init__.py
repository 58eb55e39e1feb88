"""Small reference models that the command line can name, and the contract to write one."""

from ..config.registry import exporter
from .base import Model as Model

__getattr__, __dir__ = exporter("model")
