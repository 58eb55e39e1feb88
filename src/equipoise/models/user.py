"""A model of a function of the user's own: `--model package.module:function`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from ..core.errors import UserError
from ..core.user_function import class_of, failed
from ..data.base import LoadedData
from .base import Model


@dataclass
class UserModel(Model):
    """What the function returns. A parameter named `data` receives the loaded data: its shape, classes, vocabulary."""

    function: ClassVar[Any]

    def build(self, data: LoadedData) -> nn.Module:
        name, function = type(self).metadata.name, type(self).function
        given = {"data": data} if "data" in inspect.signature(function).parameters else {}
        try:
            model = function(**given, **self.options())
        except UserError:
            raise
        except Exception as error:
            raise failed(name, error) from error
        if not isinstance(model, nn.Module):
            raise UserError(f"{name} returned {type(model).__name__}: it must return a torch.nn.Module")
        return model


def named(name: str) -> type:
    """The class behind `package.module:function`."""
    return class_of(UserModel, name, given=("data",))
