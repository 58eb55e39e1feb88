"""Data of a function of the user's own: `--data package.module:function`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from ..core.errors import DataError, UserError
from ..core.user_function import class_of, failed
from .base import Arrays, Data, LoadedData
from .source import Source
from .training_loss import divided

_RETURNS = "a Dataset, (inputs, targets), (train, test), a dict with 'train' and 'test', or LoadedData"


@dataclass
class UserData(Data):
    """What the function returns, described for the models that Equipoise has."""

    function: ClassVar[Any]

    def load(self) -> LoadedData:
        name = type(self).metadata.name
        try:
            returned = type(self).function(**self.options())
        except UserError:
            raise
        except Exception as error:
            raise failed(name, error) from error
        if isinstance(returned, LoadedData):
            return returned
        train, test = _parts(name, returned)
        try:
            return described(train, test)
        except UserError as error:
            raise DataError(f"{name}: {error}") from error
        except Exception as error:
            raise failed(name, error, ": its first example") from error


def named(name: str) -> type:
    """The class behind `package.module:function`."""
    return class_of(UserData, name)


def described(train: Any, test: Any) -> LoadedData:
    """Training and test data with what a model must know about them, as far as the data shows it."""
    source = Source(train)
    inputs, targets = divided(source.batch(np.arange(1)))
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else ()
    labels = source.view().labels
    if labels is not None:
        task, outputs = "classify", int(labels.max()) + 1
    elif isinstance(targets, torch.Tensor) and targets.is_floating_point():
        task, outputs = "regress", int(targets[0].numel())
    elif isinstance(targets, torch.Tensor) and targets.ndim > 1:
        task, outputs = "language", 0
    else:
        task, outputs = "classify", 0
    return LoadedData(train=train, test=test if test is not None else train, task=task, outputs=outputs, shape=shape)  # type: ignore[arg-type]


def _parts(name: str, returned: Any) -> tuple[Any, Any]:
    """Training and test data."""
    if isinstance(returned, Mapping) and "train" in returned:
        return _part(name, returned["train"]), _part(name, returned.get("test"))
    if isinstance(returned, (tuple, list)) and len(returned) == 2 and not _is_array(returned[0]):
        return _part(name, returned[0]), _part(name, returned[1])
    if _is_data(returned) and not (isinstance(returned, Mapping) and not all(map(_is_array, returned.values()))):
        return _part(name, returned), None
    raise DataError(f"{name} returned {type(returned).__name__}: it must return {_RETURNS}")


def _part(name: str, data: Any) -> Any:
    """Pairs of arrays as `Arrays`; anything else as it is."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(map(_is_array, data)):
        x, y = (torch.as_tensor(part) for part in data)
        if len(x) != len(y):
            raise DataError(f"{name} returned {len(x):,} inputs and {len(y):,} targets: return as many of both")
        return Arrays(x, y)
    if data is not None and not _is_data(data):
        raise DataError(f"{name} returned a part of type {type(data).__name__}: it must return {_RETURNS}")
    return data


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _is_data(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")
