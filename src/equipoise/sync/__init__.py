"""What do workers exchange, and how do they combine it?"""

from ..config.registry import exporter
from ..core.vector import ModelSize as ModelSize
from .base import Needs as Needs
from .base import StepPlan as StepPlan
from .base import Sync as Sync

__getattr__, __dir__ = exporter("sync")
