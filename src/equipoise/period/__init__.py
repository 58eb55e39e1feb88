"""When do workers talk?"""

from .base import Period as Period
from .every import Every as Every
from .total_steps import TotalSteps as TotalSteps
