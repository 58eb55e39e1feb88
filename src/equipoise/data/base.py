"""The contract of a data set: options in, tensors out. Nothing is downloaded."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from ..core.errors import DataError
from ..core.method import Configurable


class Arrays(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Examples held as tensors: inputs `x` and targets `y` with equal first dimension."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        assert len(x) == len(y), (x.shape, y.shape)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self.x[i], self.y[i]) for i in indices]

    def batch(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """The examples at `indices` as one batch, by one gather per tensor."""
        index = torch.from_numpy(np.ascontiguousarray(indices))
        return self.x[index], self.y[index]


def examples(x: np.ndarray, y: np.ndarray, source: str, limit: int | None = None) -> Arrays:
    """The first `limit` examples as `Arrays`; no examples, or a value that is not finite, is a `DataError`.

    `source` names the file in the message. Checked here, because a NaN among the inputs would otherwise show up
    only many steps later, as a NaN loss on one worker.
    """
    x, y = x[:limit], y[:limit]
    if len(x) == 0:
        raise DataError(f"{source}: no examples: check the file and the sizes asked for")
    for part, values in (("input", x), ("target", y)):
        if not np.issubdtype(values.dtype, np.floating):
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            clean = np.isfinite(values.sum(dtype=np.float64))  # a mask as large as the data is made only if this fails
        if not clean:
            bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
            if len(bad):
                raise DataError(
                    f"{source}: the {part} of example {bad[0]} (counted from 0) holds NaN or infinity: "
                    "fix or remove that example"
                )
    return Arrays(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y)))


@dataclass
class LoadedData:
    """A data set in memory: train and test parts, and what a model must know about them."""

    train: Arrays
    test: Arrays
    task: Literal["classify", "regress", "language"]
    outputs: int  # classes, targets per example, or words
    shape: tuple[int, ...]  # of one input
    tokens: int | None = None  # vocabulary, where inputs are token ids
    notes: dict[str, Any] = field(default_factory=dict)  # e.g. the vocabulary, where the files were


@dataclass
class Data(Configurable):
    """A data set that the command line can name."""

    axis: ClassVar[str] = "data"

    @abstractmethod
    def load(self) -> LoadedData:
        """Read the data; a missing or damaged file is a `DataError` of one line that names the file and the fix."""
