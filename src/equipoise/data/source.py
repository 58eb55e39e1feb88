"""Batches by index from any map-style data: tensors are gathered, other data sets are collated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from ..core.errors import UserError
from .training_loss import LABELS
from .view import DatasetView


class Source:
    """A data set that returns a batch for an array of indices; `collate` makes it of a list of examples."""

    def __init__(self, data: Any, collate: Callable[[list[Any]], Any] | None = None):
        self.collate = collate or default_collate
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, (tuple, list)) and all(isinstance(t, (torch.Tensor, np.ndarray)) for t in data):
            self.tensors: tuple[torch.Tensor, ...] | None = tuple(torch.as_tensor(t) for t in data)
            lengths = {len(t) for t in self.tensors}
            if len(lengths) != 1:
                raise UserError(f"inputs and targets have different lengths: {sorted(lengths)}")
            self.length = lengths.pop()
        elif hasattr(data, "x") and hasattr(data, "y") and isinstance(data.x, torch.Tensor):
            self.tensors, self.length = (data.x, data.y), len(data)
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            self.tensors, self.length = None, len(data)
        else:
            raise UserError(
                f"data of type {type(data).__name__} cannot be indexed: pass (inputs, targets) tensors or a "
                "map-style Dataset"
            )
        if self.length == 0:
            raise UserError("the data is empty: there is nothing to train on")
        self.data: Any = data

    def __len__(self) -> int:
        return self.length

    def batch(self, indices: np.ndarray) -> Any:
        """The examples at `indices` as one batch."""
        if self.tensors is not None:
            index = torch.from_numpy(indices)
            return tuple(t[index] for t in self.tensors)
        fetch = getattr(self.data, "__getitems__", None)
        items = fetch(indices.tolist()) if fetch is not None else [self.data[int(i)] for i in indices]
        if isinstance(items, Mapping):  # columns, as Hugging Face data sets give them
            items = [dict(zip(items, row, strict=True)) for row in zip(*items.values(), strict=True)]
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
