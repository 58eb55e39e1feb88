"""What do workers exchange, and how do they combine it?"""

from .all_reduce import AllReduce as AllReduce
from .base import Sync as Sync
from .none import NoSync as NoSync
from .periodic_average import PeriodicAverage as PeriodicAverage
