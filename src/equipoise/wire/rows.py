"""Wires that code a vector block by block: it becomes the rows of a matrix, each with a code of the same length."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from ..comm.fused_reduction import chunks
from .base import Draw, Piece, Wire


@dataclass
class RowWire(Wire):
    """Final here: everything but the code of a row."""

    @abstractmethod
    def row_length(self) -> int:
        """Elements of a row; a vector that is shorter is one row."""

    @abstractmethod
    def row_bytes(self, length: int) -> int:
        """Bytes of the code of a row of this length."""

    @abstractmethod
    def encode_rows(self, rows: torch.Tensor, draw: Draw) -> torch.Tensor:
        """The codes, uint8 and one per row. Rows are finite or all NaN; the code of NaN is decoded to NaN."""

    @abstractmethod
    def add_decoded_rows(self, codes: torch.Tensor, rows: torch.Tensor, alpha: float) -> None:
        """rows <- rows + alpha times the decoded codes, in place."""

    def encode(
        self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any
    ) -> tuple[torch.Tensor, Any]:
        return self.encode_rows(self.rows_of(vector), draw).view(-1), None

    def add_decoded(
        self, message: torch.Tensor, out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, alpha: float = 1.0
    ) -> None:
        rows = self.rows_of(out)
        self.add_decoded_rows(message.view(len(rows), -1), rows, alpha)
        if rows.data_ptr() != out.data_ptr():
            out.copy_(rows.view(-1)[: len(out)])

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

    def rows_of(self, vector: torch.Tensor, parts: int = 1) -> torch.Tensor:
        """The vector as a matrix, filled up with zeros; a view where nothing is to be filled."""
        length = self.length_for(len(vector), parts)
        missing = -len(vector) % length
        return (torch.nn.functional.pad(vector, (0, missing)) if missing else vector).view(-1, length)
