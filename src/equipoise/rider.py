"""Numbers of one method that travel with the message of another, so that a round stays one collective."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Rider(ABC):
    """What a batch rule sends along with a round: a few numbers, and what can be said of a vector by looking at pieces.

    Every worker receives everybody's numbers, and looks at one piece of everybody's vectors; what the pieces say is
    handed round with the sums. So all workers end with the same bits, and decide alike whatever processors they have.
    """

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
        """What the pieces from element `start` on say: `rows[m]` is that of worker m's vector times `scales[m]`."""

    @abstractmethod
    def arrive(self, notes: list[list[float]], findings: list[list[float]]) -> None:
        """All notes by worker, all findings by piece: the same on every worker."""
