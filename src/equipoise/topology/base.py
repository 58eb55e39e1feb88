"""Who talks to whom? A pure function of the round number: no process groups, no state."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..errors import UserError
from ..method import Plain

Self = TypeVar("Self", bound="Topology")


@dataclass
class Topology(Plain):
    """A graph over workers with mixing weights, perhaps another one each round.

    Final here: `on`, `matrix` and what follows from it. A topology fills `edges`.
    """

    size = 0  # set by `on`

    @abstractmethod
    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        """The peers whose models worker `rank` mixes in at `round`, with their weights; itself not included."""

    def on(self: Self, size: int) -> Self:
        """This topology over `size` workers."""
        if size < 1:
            raise UserError(f"a topology over {size} workers: at least 1 is needed")
        bound = copy.copy(self)
        bound.size = size
        return bound

    def neighbours(self, round: int, rank: int) -> list[tuple[int, float]]:
        """`[(peer, weight), ...]`; the weight of the worker itself is what is missing to 1."""
        assert self.size, "call .on(workers) first"
        return self.edges(round, rank, self.size) if self.size > 1 else []

    def matrix(self, round: int = 0) -> np.ndarray:
        """W: row i holds the weights with which worker i mixes the models of all."""
        weights = np.zeros((self.size, self.size))
        for rank in range(self.size):
            for peer, weight in self.neighbours(round, rank):
                weights[rank, peer] += weight
            weights[rank, rank] += 1.0 - weights[rank].sum()
        return weights

    def spectral_gap(self, round: int = 0) -> float:
        """1 - lambda with lambda = ||W - 11^T/n||_2: how much disagreement one round of mixing leaves."""
        centred = self.matrix(round) - 1.0 / self.size
        return float(1.0 - np.linalg.norm(centred, 2))
