"""What orders and batch rules see of each example's gradient."""

from .base import Signal as Signal
from .batch_gradient import BatchGradient as BatchGradient
