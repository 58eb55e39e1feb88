"""The contract of a reference model: options in, an `nn.Module` for given data out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from ..core.errors import UserError
from ..core.method import Configurable
from ..data.base import LoadedData

Kind = Literal["image", "vector", "tokens"]

FITTING: dict[Kind, str] = {
    "image": "logistic, mlp, lenet, vgg or resnet",
    "vector": "logistic or mlp",
    "tokens": "lstm or transformer",
}

LEAST_SIDE = 8  # pixels; after two poolings there must be pixels left to convolve


def kind_of(data: LoadedData) -> Kind:
    """What one input is; an image too small for convolutions counts as a vector."""
    if data.tokens is not None:
        return "tokens"
    return "image" if len(data.shape) == 3 and min(data.shape[1:]) >= LEAST_SIDE else "vector"


@dataclass
class Model(Configurable):
    """A small model that the command line can name."""

    axis: ClassVar[str] = "model"

    @abstractmethod
    def build(self, data: LoadedData) -> nn.Module:
        """The module for this data, initialised from torch's global generator; `UserError` if the data does not fit."""

    def require(self, data: LoadedData, *kinds: Kind) -> None:
        """Refuse data of another kind and name the models that fit it."""
        from ..config.registry import name_of

        kind = kind_of(data)
        if kind in kinds and data.outputs > 0:
            return
        if kind in kinds:
            raise UserError(
                f"{name_of(self)} must know how many outputs it has, and the data does not show it: yield (inputs, "
                "targets) and give the data set an attribute `targets`, the class of every example; or return "
                "equipoise.data.LoadedData; or pass --model package.module:function"
            )
        takes = {
            "image": f"images of at least {LEAST_SIDE} x {LEAST_SIDE} pixels",
            "vector": "plain numbers",
            "tokens": "words",
        }[kinds[0]]
        given = "words" if kind == "tokens" else f"inputs of shape {data.shape}"
        bags = kind == "tokens" and data.task == "classify" and "vector" in kinds
        bag = ", or --data.features bag where the data is tsv" if bags else ""
        raise UserError(f"{name_of(self)} takes {takes}, but the data has {given}: use --model {FITTING[kind]}{bag}")
