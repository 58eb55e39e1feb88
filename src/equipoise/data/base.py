"""The contract of a data set: options in, tensors out. Nothing is ever downloaded."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from ..method import Plain


class Arrays(Dataset):
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
        """The examples at `indices` as one batch: one gather a tensor."""
        index = torch.from_numpy(np.ascontiguousarray(indices))
        return self.x[index], self.y[index]


@dataclass
class Loaded:
    """What a data set gives: train and test parts, and what a model must know of them."""

    train: Arrays
    test: Arrays
    task: Literal["classify", "regress", "language"]
    outputs: int  # classes, targets per example, or words
    shape: tuple[int, ...]  # of one input
    tokens: int | None = None  # vocabulary, where inputs are token ids
    notes: dict[str, Any] = field(default_factory=dict)  # e.g. the vocabulary, where the files were


@dataclass
class Data(Plain):
    """A data set that the command line can name."""

    @abstractmethod
    def load(self) -> Loaded:
        """Read it; a missing or damaged file is a `DataError` of one line that names the file and the fix."""
