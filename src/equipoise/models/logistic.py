"""One linear layer: multinomial logistic regression, or linear regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.method import Metadata
from ..data.base import LoadedData
from .base import Model


@dataclass
class Logistic(Model):
    """[B, ...] numbers to [B, outputs] logits (or predictions), the input flattened.

    Initialised at zero, where all classes are equally likely. The loss is convex, so the minimum does not depend on
    the initialisation.
    """

    metadata: ClassVar[Metadata] = Metadata(name="logistic", help="one linear layer")

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "vector", "image")
        linear = nn.Linear(math.prod(data.shape), data.outputs)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return nn.Sequential(nn.Flatten(), linear)
