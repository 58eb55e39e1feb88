"""Numbers of one method that travel with the message of another, so that a round stays one collective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from .fused_reduction import Look

if TYPE_CHECKING:
    from ..core.context import Context


class Rider(ABC):
    """What a batch rule sends along with a round: a few numbers, and what can be seen of a vector piece by piece."""

    aboard: bool = False  # is there something for the next round? The same answer on all workers.
    findings: int = 0  # how many numbers `look` gives

    @abstractmethod
    def note(self) -> list[float]:
        """This worker's numbers, always as many."""

    @abstractmethod
    def vector(self, averaged: str) -> torch.Tensor | None:
        """This worker's vector; None where the one that the sync averages ("gradient" or "parameters") will do."""

    @abstractmethod
    def look(self, rows: list[torch.Tensor], scales: list[float], notes: list[list[float]], start: int) -> list[float]:
        """What pieces from element `start` on say: `rows[m]` is that of worker m's vector times `scales[m]`."""

    @abstractmethod
    def arrive(self, notes: list[list[float]], seen: list[float]) -> None:
        """Everybody's notes, and what all pieces said in total: the same on every worker."""


def sum_carrying(
    context: Context, vector: torch.Tensor, weight: float, averaged: str, tell: bool = False
) -> list[float]:
    """The sum over workers of vectors that were multiplied by their weights, in place, with whoever rides along.

    `averaged` names the vector for riders that want its mean. Gives everybody's weight: always if asked to `tell`, or
    else where it costs nothing more because somebody rode, and nothing otherwise.
    """
    rider = context.rider if context.rider is not None and context.rider.aboard else None
    if rider is None:
        if not tell:
            context.comm.sum(vector)
            return []
        notes, _ = context.comm.sum_and_look(vector, Look([weight], lambda rows, notes, start: [], 0))
        return [note[0] for note in notes]
    rider.aboard = False
    own = rider.vector(averaged)

    def see(rows: list[torch.Tensor], notes: list[list[float]], start: int) -> list[float]:
        scales = [1.0 if own is not None else note[0] for note in notes]
        return rider.look(rows, scales, [note[1:] for note in notes], start)

    notes, seen = context.comm.sum_and_look(vector, Look([weight, *rider.note()], see, rider.findings, own))
    rider.arrive([note[1:] for note in notes], seen)
    return [note[0] for note in notes]
