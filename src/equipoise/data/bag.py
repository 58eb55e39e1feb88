"""Bags of words, stored sparsely."""

from __future__ import annotations

import numpy as np
import torch

from .base import Arrays


class Bag(Arrays):
    """Counts of words [width] float32, scaled to length 1; made dense a batch at a time.

    SST-2 with 10,000 words would be 2.4 GB as one dense tensor, in every worker. So there is no `x` here: read
    through `batch` or by index. The classes are in `y` and, as in other map-style data, in `targets`.
    """

    def __init__(self, bags: list[list[int]], y: np.ndarray, width: int):
        self.ids = np.array([i for bag in bags for i in bag], np.int64)
        self.ends = np.cumsum([0, *map(len, bags)])
        self.y = self.targets = torch.from_numpy(y)
        self.width = width

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.batch(np.array([index]))
        return x[0], y[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(*self.batch(np.array(indices)), strict=True))

    def batch(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        at = np.arange(len(self))[indices]  # numpy's rules for an index that is negative or too large
        counts = self.ends[at + 1] - self.ends[at]
        rows = np.repeat(np.arange(len(at)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        ids = self.ids[np.repeat(self.ends[at], counts) + within]
        x = torch.zeros(len(at), self.width)
        x.index_put_((torch.from_numpy(rows), torch.from_numpy(ids)), torch.ones(len(rows)), accumulate=True)
        return torch.nn.functional.normalize(x), self.y[torch.from_numpy(at)]
