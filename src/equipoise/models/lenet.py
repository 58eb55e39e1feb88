"""LeNet-5 with ReLU and max pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.method import Metadata
from ..data.base import LoadedData
from .base import Model


@dataclass
class LeNet(Model):
    """[B, C, H, W] images to [B, outputs]: two 5 x 5 convolutions of 6 and 16 channels, then 120, 84.

    For images of 32 x 32 and larger the classical network, without padding: 62,006 parameters on CIFAR-10, as in the
    ablation of CD-GraB (Cooper et al., 2023). Smaller images, down to 8 x 8, are padded to keep their size.
    Source: LeCun, Bottou, Bengio, Haffner (1998).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="lenet", help="two convolutions, three linear layers", cites=("lecun1998gradient",)
    )

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "image")
        channels, *sides = data.shape
        padding = 0 if min(sides) >= 32 else 2
        height, width = (_after(_after(side, padding), padding) for side in sides)
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * height * width, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, data.outputs),
        )


def _after(side: int, padding: int) -> int:
    """The side of an image after one convolution and pooling."""
    return (side + 2 * padding - 4) // 2
