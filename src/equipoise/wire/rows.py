"""Wires that code a vector block by block: it becomes the rows of a matrix, each with a code of the same length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..comm.fused_reduction import chunks
from .base import Draw, Piece, Wire

CACHED = 1 << 17  # elements: half a megabyte
Parts = list[tuple[int, int]]  # first row and the one behind the last
RandomSource = Callable[[], torch.Generator]


@dataclass
class RowWire(Wire):
    """Final here: everything but the code of rows. The last row of a vector may be shorter: zeros follow it."""

    @abstractmethod
    def row_length(self) -> int:
        """Elements of a row; a vector that is shorter is one row."""

    @abstractmethod
    def row_bytes(self, length: int) -> int:
        """Bytes of the code of a row of this length."""

    @abstractmethod
    def encode_rows(
        self, vector: torch.Tensor, length: int, parts: Parts, source: RandomSource, *, subtract: bool
    ) -> list[torch.Tensor]:
        """The codes of parts of the rows: uint8, `row_bytes` for each row, in any order.

        The vector is finite or all NaN; the code of NaN is decoded to NaN. `source` is for random choices. `subtract`
        leaves in the vector what the codes leave out.
        """

    @abstractmethod
    def add_decoded_rows(self, codes: Sequence[torch.Tensor], vector: torch.Tensor, length: int, alpha: float) -> None:
        """vector <- vector + alpha times the rows of each code, one after the other, in place."""

    def encode(
        self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any
    ) -> tuple[torch.Tensor, Any]:
        length, parts = self.divided(len(vector), 1)
        [code] = self.encode_rows(vector, length, parts, draw.source(vector.device), subtract=False)
        return code, None

    def add_decoded(
        self, message: torch.Tensor, out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, alpha: float = 1.0
    ) -> None:
        self.add_decoded_rows([message], out, self.length_for(len(out)), alpha)

    def message_bytes(self, elements: int, pieces: tuple[Piece, ...] = ()) -> int:
        length = self.length_for(elements)
        return -(-elements // length) * self.row_bytes(length)

    def sum_cost(self, elements: int, pieces: tuple[Piece, ...], rank: int, size: int) -> tuple[int, int]:
        if self.collective() == "all-gather":
            return size - 1, (size - 1) * self.message_bytes(elements)
        length = self.length_for(elements, size)
        bounds, row = chunks(-(-elements // length), size), self.row_bytes(length)
        total, own = bounds[-1][1], bounds[rank][1] - bounds[rank][0]
        return (size - 1) * (1 + bool(own)), (total - own + own * (size - 1)) * row

    def length_for(self, elements: int, parts: int = 1) -> int:
        """Elements of a row, where the rows are divided among so many workers."""
        return max(1, min(self.row_length(), -(-elements // parts)))

    def divided(self, elements: int, workers: int) -> tuple[int, Parts]:
        """The length of a row, and the rows of each worker."""
        length = self.length_for(elements, workers)
        return length, chunks(-(-elements // length), workers)


def rows_of(vector: torch.Tensor, length: int) -> torch.Tensor:
    """The vector as rows, the last one filled up with zeros; a view where nothing is to be filled."""
    missing = -len(vector) % length
    return (torch.nn.functional.pad(vector, (0, missing)) if missing else vector).view(-1, length)


def put_back(rows: torch.Tensor, vector: torch.Tensor) -> None:
    """Rows of the vector have changed."""
    if rows.numel() > len(vector):
        vector.copy_(rows.view(-1)[: len(vector)])


def few_rows(length: int) -> int:
    """How many rows stay in the processor's cache from one operation to the next."""
    return max(1, CACHED // length)
