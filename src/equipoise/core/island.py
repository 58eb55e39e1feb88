"""A worker that is a group of processes: numbers of its whole vectors, and what its ranks decide together.

With FSDP inside, every rank of an island holds a shard of each vector, and a sync works on shards: rank r of one island
with rank r of the others. A number of the whole vector (a norm, a product, whether it is finite) is summed over the
ranks of the island. What ranks measure for themselves (a loss, seconds) is made the same on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .device import on_host

if TYPE_CHECKING:
    from ..comm.base import Comm


class Island:
    """The ranks of one worker. inside: their comm; None for a worker that is one process.

    replicas: how many of them hold the same part of a vector: all with DDP, one with FSDP.
    """

    def __init__(self, inside: Comm | None = None, replicas: int = 1):
        self.inside, self.replicas = inside, replicas

    @property
    def rank(self) -> int:
        return 0 if self.inside is None else self.inside.rank

    @property
    def size(self) -> int:
        return 1 if self.inside is None else self.inside.size

    @property
    def sharded(self) -> bool:
        """Do its ranks hold different parts of a vector?"""
        return self.replicas < self.size

    def configure(self, *, timeout: float | None, deterministic: bool | None) -> None:
        """As of a comm."""
        if self.inside is not None:
            self.inside.configure(timeout=timeout, deterministic=deterministic)

    def total(self, parts: torch.Tensor) -> torch.Tensor:
        """Sums over the parts of a vector, from those over this rank's part; in float64 on the host."""
        parts = on_host(parts)
        return self._summed(parts) / self.replicas if self.sharded else parts

    def norms(self, parts: torch.Tensor) -> torch.Tensor:
        """The l2 norms of vectors, from those of this rank's parts; in float64 on the host."""
        return self.total(on_host(parts).square()).sqrt() if self.sharded else on_host(parts)

    def norm(self, part: torch.Tensor) -> float:
        """The l2 norm of a vector of which this rank has a part."""
        return float(self.norms(part.norm()))

    def add(self, *numbers: float) -> list[float]:
        """Sums over all ranks."""
        summed: list[float] = self._summed(torch.tensor(numbers, dtype=torch.float64)).tolist()
        return summed

    def all(self, flag: bool) -> bool:
        """Is it so on all ranks?"""
        return flag if self.inside is None else self.add(float(flag)) == [self.size]

    def any_code(self, code: int) -> int:
        """The first code, by rank, that is not zero."""
        told = self._rows(torch.tensor([code], dtype=torch.float64)).flatten().tolist()
        return next((int(each) for each in told if each), 0)

    def agree(self, numbers: Sequence[float], parts: Sequence[float]) -> tuple[list[float], list[float]]:
        """`numbers` as rank 0 has them, and `parts` of the whole vectors; in one message."""
        if self.inside is None:
            return list(numbers), list(parts)
        rows = self._rows(torch.tensor([*numbers, *parts], dtype=torch.float64))
        first, totals = rows[0].tolist(), _in_order(rows) / self.replicas
        count = len(numbers)
        return first[:count], totals[count:].tolist() if self.sharded else first[count:]

    def told(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        return [value] if self.inside is None else self.inside.gather_objects(value)

    def mean(self, vector: torch.Tensor) -> torch.Tensor:
        """The mean over ranks, in place."""
        if self.inside is not None and vector.numel():
            self.inside.mean(vector)
        return vector

    def _summed(self, numbers: torch.Tensor) -> torch.Tensor:
        return _in_order(self._rows(numbers))

    def _rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.unsqueeze(0) if self.inside is None else self.inside.gather(numbers)


def _in_order(rows: torch.Tensor) -> torch.Tensor:
    """The sum in rank order: the same bits on all ranks."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
