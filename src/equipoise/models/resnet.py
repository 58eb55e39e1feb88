"""Residual networks for small images, 6n + 2 layers deep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..core.errors import UserError
from ..core.method import Metadata, option
from ..data.base import LoadedData
from .base import Model


@dataclass
class ResNet(Model):
    """[B, C, H, W] images to [B, outputs]: three stages of `width`, 2 and 4 times `width` channels.

    Shortcuts have no parameters: they take every second pixel and pad new channels with zeros (option A of the paper),
    so that 20 layers have the paper's 0.27 million parameters on CIFAR-10.
    Source: He, Zhang, Ren, Sun (2016), section 4.2.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="resnet", help="small residual network with BatchNorm", cites=("he2016deep",)
    )

    depth: int = option(8, help="layers: 8, 14, 20, ... (6n + 2)", least=8)
    width: int = option(16, help="channels of the first stage", least=1)
    # BatchNorm's statistics come from one worker's examples; with non-IID partitions GroupNorm is the safer choice.
    norm: str = option("batch", help="BatchNorm, or GroupNorm with up to 8 groups", choices=("batch", "group"))

    def check(self) -> None:
        if (self.depth - 2) % 6:
            below = (self.depth - 2) // 6 * 6 + 2
            raise UserError(f"ResNet(depth={self.depth}): depth must be 6n + 2: use {below} or {below + 6}")

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "image")
        layers: list[nn.Module] = [
            nn.Conv2d(data.shape[0], self.width, 3, padding=1, bias=False),
            self._norm(self.width),
            nn.ReLU(),
        ]
        inputs = self.width
        for stage in range(3):
            outputs = self.width * 2**stage
            for block in range((self.depth - 2) // 6):
                stride = 2 if stage and not block else 1
                layers.append(_Block(inputs, outputs, stride, self._norm(outputs), self._norm(outputs)))
                inputs = outputs
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, data.outputs))
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        return net

    def _norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(math.gcd(8, channels), channels)


class _Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm1: nn.Module, norm2: nn.Module):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = norm1
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm2
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(y + shortcut)
