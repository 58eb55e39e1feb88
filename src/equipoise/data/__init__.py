"""Data sets that the command line can name, and the contract to write one."""

from ..config.registry import exporter
from .base import Arrays as Arrays
from .base import Data as Data
from .base import LoadedData as LoadedData

__getattr__, __dir__ = exporter("data")
