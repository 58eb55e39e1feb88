"""Who talks to whom?"""

from ..config.registry import exporter
from .base import Static as Static
from .base import Topology as Topology

__getattr__, __dir__ = exporter("topology")
