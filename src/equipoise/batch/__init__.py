"""How many examples per step?"""

from .augmented import Augmented as Augmented
from .base import Batch as Batch
from .cabs import CABS as CABS
from .fixed import Fixed as Fixed
from .inner_product import InnerProduct as InnerProduct
from .noise_scale import NoiseScale as NoiseScale
from .norm_test import NormTest as NormTest
from .proportional import Proportional as Proportional
from .schedule import Schedule as Schedule
