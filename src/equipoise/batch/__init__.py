"""How many examples per step?"""

from .base import Batch as Batch
from .fixed import Fixed as Fixed
