"""Fully connected layers with ReLU between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import nn

from ..core.method import Metadata, option
from ..data.base import LoadedData
from .base import Model


@dataclass
class MLP(Model):
    """[B, ...] numbers to [B, outputs] logits (or predictions), the input flattened."""

    metadata: ClassVar[Metadata] = Metadata(name="mlp", help="fully connected layers with ReLU")

    hidden: tuple[int, ...] = option((128,), help="width of every hidden layer", least=1)

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "vector", "image")
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise((math.prod(data.shape), *self.hidden)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers.append(nn.Linear((math.prod(data.shape), *self.hidden)[-1], data.outputs))
        return nn.Sequential(*layers)
