"""Batches by index from any map-style data: tensors are gathered, other data sets are collated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from ..core.errors import UserError
from .view import DatasetView


class Source:
    """A data set that returns `(inputs, targets)` for an array of indices."""

    def __init__(self, data: Any):
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
        return default_collate(items)

    def view(self) -> DatasetView:
        """What a partition may see of this data."""
        return DatasetView(len(self), self._labels(), self.data)

    def _labels(self) -> np.ndarray | None:
        """The class of every example, where the data has integer targets; None otherwise."""
        targets = self.tensors[-1] if self.tensors is not None else getattr(self.data, "targets", None)
        if targets is None:
            return None
        labels = np.asarray(targets)
        return labels if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) else None
