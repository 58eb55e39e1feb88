"""VGG-like networks for small images: plain stacks of 3 x 3 convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.method import Metadata, option
from ..data.base import LoadedData
from .base import Model


@dataclass
class VGG(Model):
    """[B, C, H, W] images to [B, outputs]: stages of two convolutions and a pooling, then one hidden layer.

    Channels double from stage to stage. Configuration A of the paper, scaled down to small images; without shortcuts,
    so its minima are sharper and it is harder to train than a ResNet of its size. The default has 0.2 million
    parameters on CIFAR-10. Every stage halves the image, so small images get fewer stages.
    Source: Simonyan and Zisserman (2015).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="vgg", help="plain stacks of convolutions with BatchNorm", cites=("simonyan2015very",)
    )

    width: int = option(16, help="channels of the first stage", least=1)
    stages: int = option(3, help="stages of two convolutions and a pooling", least=1, most=5)
    hidden: int = option(128, help="units of the hidden layer", least=1)
    # BatchNorm's statistics come from one worker's examples; with non-IID partitions GroupNorm is the safer choice.
    norm: str = option(
        "batch", help="BatchNorm, GroupNorm with up to 8 groups, or none", choices=("batch", "group", "none")
    )
    dropout: float = option(0.0, help="dropout probability before the last layer", least=0, below=1)

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "image")
        inputs, *sides = data.shape
        layers: list[nn.Module] = []
        for stage in range(min(self.stages, int(math.log2(min(sides))))):
            outputs = self.width * 2**stage
            for _ in range(2):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=self.norm == "none")]
                layers += [*self._norm(outputs), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
            sides = [side // 2 for side in sides]
        units = inputs * math.prod(sides)
        layers += [nn.Flatten(), nn.Linear(units, self.hidden), nn.ReLU(), nn.Dropout(self.dropout)]
        net = nn.Sequential(*layers, nn.Linear(self.hidden, data.outputs))
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        return net

    def _norm(self, channels: int) -> list[nn.Module]:
        if self.norm == "none":
            return []
        return [nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(math.gcd(8, channels), channels)]
