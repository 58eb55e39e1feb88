"""How many examples per step?"""

from .base import Batch as Batch
from .fixed import Fixed as Fixed
from .proportional import Proportional as Proportional
