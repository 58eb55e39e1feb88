"""Numbers of one method that travel with the message of another, so that a round stays one collective."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from .base import Comm
from .fused_reduction import FusedReduction, metadata_only


class Piggyback(ABC):
    """What a batch rule sends with a round: a few numbers, and statistics of a vector, chunk by chunk.

    The loop hands it to the sync in the step whose round carries it. Either all workers have one, or none.
    """

    outputs: int = 0  # how many numbers `map_chunk` returns

    @abstractmethod
    def metadata(self) -> list[float]:
        """This worker's numbers; the same count on all workers."""

    @abstractmethod
    def vector(self, averaged: str) -> torch.Tensor | None:
        """This worker's vector; None to use the one that the sync averages ("gradient" or "parameters")."""

    @abstractmethod
    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        """Statistics of a chunk from element `start` on: `rows[m]` is that of rank m's vector times `scales[m]`."""

    @abstractmethod
    def receive(self, metadata: list[list[float]], totals: list[float]) -> None:
        """All workers' metadata, and the statistics summed over chunks: the same on every worker."""


def sum_with_piggyback(
    comm: Comm,
    vector: torch.Tensor,
    weight: float,
    averaged: str,
    piggyback: Piggyback | None,
    *,
    gather_weights: bool = False,
) -> list[float]:
    """Sum vectors that were already multiplied by their weights, in place, together with the piggyback if there is one.

    `averaged` says what the vector is, for the piggyback. Returns all workers' weights with `gather_weights` or with a
    piggyback, which carries them at no cost; else an empty list.
    """
    if piggyback is None:
        if not gather_weights:
            comm.sum(vector)
            return []
        metadata, _ = comm.fused_sum(vector, metadata_only([weight]))
        return [row[0] for row in metadata]
    own = piggyback.vector(averaged)

    def map_chunk(rows: list[torch.Tensor], metadata: list[list[float]], start: int) -> list[float]:
        scales = [1.0 if own is not None else row[0] for row in metadata]
        return piggyback.map_chunk(rows, scales, [row[1:] for row in metadata], start)

    reduction = FusedReduction([weight, *piggyback.metadata()], map_chunk, piggyback.outputs, own)
    metadata, totals = comm.fused_sum(vector, reduction)
    piggyback.receive([row[1:] for row in metadata], totals)
    return [row[0] for row in metadata]
