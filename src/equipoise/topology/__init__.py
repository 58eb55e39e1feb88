"""Who talks to whom?"""

from .base import Topology as Topology
from .complete import Complete as Complete
from .ring import Ring as Ring
