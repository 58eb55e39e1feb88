"""Which examples does a worker own?"""

from ..config.registry import exporter
from ..data.view import DatasetView as DatasetView
from .base import Partition as Partition

__getattr__, __dir__ = exporter("partition")
