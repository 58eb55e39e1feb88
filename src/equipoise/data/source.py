"""Batches by index from any map-style data: tensors are gathered, other data sets are collated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from ..core.errors import UserError
from .training_loss import LABELS
from .view import DatasetView


class Source:
    """A data set that returns a batch for an array of indices; `collate` makes it of a list of examples."""

    def __init__(self, data: Any, collate: Callable[[list[Any]], Any] | None = None):
        self.collate = collate or default_collate
        self.names: tuple[str, ...] | None = None  # of the tensors, where batches are dicts
        if isinstance(data, TensorDataset):
            data = data.tensors
        elif isinstance(data, Mapping):
            self.names, data = _columns(data)
        if isinstance(data, (tuple, list)) and all(map(_is_array, data)):
            self.tensors: tuple[torch.Tensor, ...] | None = tuple(map(_tensor, data))
            lengths = {len(t) for t in self.tensors}
            if len(lengths) > 1:
                raise UserError(f"inputs and targets have different lengths: {sorted(lengths)}")
            self.length = lengths.pop() if lengths else 0
        elif hasattr(data, "x") and hasattr(data, "y") and isinstance(data.x, torch.Tensor):
            self.tensors, self.length = (data.x, data.y), len(data)
        else:
            _refuse_what_has_no_numbered_examples(data)
            self.tensors, self.length = None, len(data)
        if self.length == 0:
            raise UserError("the data is empty: there is nothing to train on")
        self.data: Any = data

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: np.ndarray) -> Any:
        """The examples at `indices` as one batch."""
        if self.tensors is not None:
            index = torch.from_numpy(indices)
            parts = tuple(t[index] for t in self.tensors)
            return parts if self.names is None else dict(zip(self.names, parts, strict=True))
        fetch = getattr(self.data, "__getitems__", None)
        items = fetch(indices.tolist()) if fetch is not None else [self.data[int(i)] for i in indices]
        if isinstance(items, Mapping):  # columns, as Hugging Face data sets may give them
            items = [dict(zip(items, row, strict=True)) for row in zip(*items.values(), strict=True)]
        if self.collate is default_collate and hasattr(self.data, "column_names"):
            items = [{name: _row(value) for name, value in item.items()} for item in items]
        try:
            return self.collate(items)
        except (TypeError, RuntimeError) as error:
            if self.collate is not default_collate:
                raise
            raise UserError(
                f"examples of type {type(items[0]).__name__} do not stack into a batch "
                f"({str(error).splitlines()[0]}): pass collate=FUNCTION"
            ) from None

    def view(self) -> DatasetView:
        """What a partition may see of this data."""
        return DatasetView(len(self), self._labels(), self.data)

    def _labels(self) -> np.ndarray | None:
        """The class of every example, where the data has integer targets; None otherwise."""
        targets = self.tensors[-1] if self.tensors is not None else getattr(self.data, "targets", None)
        if self.names is not None and self.names[-1] not in LABELS:
            return None
        columns = getattr(self.data, "column_names", None) or ()
        named = [name for name in LABELS if name in columns]
        if targets is None and named:
            targets = self.data[named[0]][:]
        if targets is None:
            return None
        try:
            labels = np.asarray(targets)
        except ValueError:  # rows of unequal length are no classes
            return None
        return labels if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) else None


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _tensor(array: torch.Tensor | np.ndarray) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(array)
    except TypeError:
        raise UserError(f"an array of dtype {array.dtype} holds no numbers: encode it as numbers first") from None
    if tensor.ndim == 0:
        raise UserError("an array without axes has no examples: its first axis must count them")
    return tensor


def _row(value: Any) -> Any:
    """Numbers of a table as a tensor: `default_collate` would turn a list of rows into a list of columns."""
    try:
        return torch.tensor(value) if isinstance(value, list) else value
    except (TypeError, ValueError):  # text, or rows within rows that differ in length
        return value


def _columns(data: Mapping[Any, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and arrays of a dict of columns, the labels last."""
    if not all(map(_is_array, data.values())):
        parts = ", ".join(map(str, data))
        raise UserError(
            f"a dict with the entries {parts} is no data set: pass data=DICT[NAME] and test=DICT[NAME], or a dict of "
            "arrays"
        )
    names = sorted(data, key=lambda name: name in LABELS)
    return tuple(names), tuple(data[name] for name in names)


def _refuse_what_has_no_numbered_examples(data: Any) -> None:
    if isinstance(data, DataLoader):
        raise UserError(
            "a DataLoader has batches already: pass its dataset (loader.dataset), batch=N and collate=loader.collate_fn"
        )
    if isinstance(data, IterableDataset):
        raise UserError(
            f"{type(data).__name__} is an IterableDataset, whose examples have no numbers; partitions, orders and "
            "resume need them: pass list(data) if it fits into memory, or give each worker a stream of its own in a "
            "loop with eq.attach"
        )
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, list) for part in data):
        raise UserError("(inputs, targets) are lists: pass tensors or numpy arrays, such as torch.tensor(inputs)")
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise UserError(
            f"data of type {type(data).__name__} cannot be indexed: pass (inputs, targets) tensors or a map-style "
            "Dataset"
        )
