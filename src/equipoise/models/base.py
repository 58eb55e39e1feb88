"""The contract of a reference model: options in, an `nn.Module` for given data out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import nn

from ..data.base import Loaded
from ..method import Plain


@dataclass
class Model(Plain):
    """A small model that the command line can name."""

    @abstractmethod
    def build(self, data: Loaded) -> nn.Module:
        """The module for this data, initialised from torch's global generator; `UserError` where the two do not fit."""
