"""Wires whose messages can be summed: the sum of the messages is the message of the sum."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from ..comm.ledger import mean_cost
from .base import Draw, Piece, Wire

Compression = Generator[torch.Tensor, torch.Tensor, Any]


@dataclass
class LinearWire(Wire):
    """Final here: everything but the map, which may take several stages, each made with the sum of the one before."""

    def collective(self) -> str:
        return "all-reduce"

    @abstractmethod
    def lengths(self, elements: int, pieces: tuple[Piece, ...]) -> list[int]:
        """Elements (float32) of the message of each stage."""

    @abstractmethod
    def compress(self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any) -> Compression:
        """Yield the message of each stage and receive its sum over workers; the message may be overwritten with it.

        At the end it takes from the vector what the sum contains of it, and returns the memory for the next vector:
        tensors by name, the same on all workers. `memory` is None at first. The vector is finite or all NaN.
        """

    @abstractmethod
    def expand(self, sums: list[torch.Tensor], out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw) -> None:
        """out <- the vector behind the sums of all stages."""

    def encode(
        self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any
    ) -> tuple[torch.Tensor, Any]:
        stages, steps = [], self.compress(vector.clone(), pieces, draw, memory)
        try:
            stages.append(next(steps))
            while True:
                stages.append(steps.send(stages[-1].clone()))
        except StopIteration as end:
            return torch.cat(stages).view(torch.uint8), end.value

    def add_decoded(
        self, message: torch.Tensor, out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, alpha: float = 1.0
    ) -> None:
        sums = list(torch.split(message.view(torch.float32), self.lengths(len(out), pieces)))
        decoded = torch.empty_like(out)
        self.expand(sums, decoded, pieces, draw)
        out.add_(decoded, alpha=alpha)

    def message_bytes(self, elements: int, pieces: tuple[Piece, ...]) -> int:
        return 4 * sum(self.lengths(elements, pieces))

    def sum_cost(self, elements: int, pieces: tuple[Piece, ...], rank: int, size: int) -> tuple[int, int]:
        messages = bytes = 0
        for stage, length in enumerate(self.lengths(elements, pieces)):
            own = length // size + (rank < length % size)
            # An empty chunk is not sent, except in the first stage, where weights travel behind it.
            first = size - 1 if stage == 0 else min(size, length) - bool(own)
            messages += first + (size - 1) * bool(own)
            bytes += mean_cost(length, 4, rank, size)[1]
        return messages, bytes
