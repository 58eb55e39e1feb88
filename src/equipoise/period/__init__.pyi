# Written by: python -m equipoise.config.stubs
from .annealed import AnnealedPeriod as AnnealedPeriod
from .base import Period as Period
from .every import Every as Every
from .growing import Growing as Growing
from .post_local import PostLocal as PostLocal
from .qsr import QSR as QSR
from .total_steps import TotalSteps as TotalSteps
