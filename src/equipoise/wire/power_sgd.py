from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata, option
from .base import Draw, Piece
from .linear import Compression, LinearWire
from .rows import few_rows

NOISE = 1e-3  # of the initial factors; its square is lost of what they know


@dataclass
class PowerSGD(LinearWire):
    """Matrices of rank r, found by one step of a power iteration that all workers take together.

        P = orth(sum_i M_i Q);   Q_i = M_i' P;   m_i = P Q_i',   sum_i m_i = P P' sum_i M_i;   Q <- orth(sum_i Q_i)

    M_i is a tensor of the vector as a matrix: the first dimension by all others. One-dimensional tensors travel as
    they are, and so does a matrix whose two factors have no fewer elements: r (rows + columns) >= rows columns.
    A projection, so |m - e| <= |e|, and a matrix whose rank is at most r is sent exactly, to rounding. The next round
    begins with the Q of this one (warm start) and a little noise, which makes random directions of columns that
    vanished or that depend on others: a gradient of zeros, or one that was not finite, leaves no trace.
    Stores the residual and Q: r times the sum of the columns; it is the same on all workers. Sends two messages, each
    an all-reduce: 4 (r sum(rows) + dense elements) bytes, then 4 r sum(columns).
    With error feedback, or with replicas, exact in the limit with every sync that takes it; without it the message
    is biased, and `feedback = 0` does not reach the optimum.
    Every worker computes P from the same sum. On unlike hardware the results of orth may differ in the last bits, and
    then so do the models: by the rounding of a message, until the parameters are next made equal.

    Reference: Vogels, Karimireddy, Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization, NeurIPS 2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="power-sgd", help="matrices of low rank, with a warm start", cites=("vogels2019powersgd",)
    )

    rank: int = option(2, help="rank of the matrices that are sent", least=1)

    def lengths(self, elements: int, pieces: tuple[Piece, ...]) -> list[int]:
        matrices, dense = self.divided(pieces)
        first = self.rank * sum(piece.rows for piece in matrices) + sum(piece.rows * piece.columns for piece in dense)
        return [first, self.rank * sum(piece.columns for piece in matrices)] if matrices else [first]

    def compress(self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any) -> Compression:
        matrices, dense = self.divided(pieces)
        rights = self.initial_factors(matrices, draw, None if memory is None else memory["factors"], vector.device)
        lefts = [right @ matrix(vector, piece).T for piece, right in zip(matrices, rights, strict=True)]
        first = torch.cat([part.reshape(-1) for part in (*lefts, *(matrix(vector, piece) for piece in dense))])
        total = yield first
        if not matrices:
            vector.sub_(vector.clone())
            return None
        bases = self.bases(total, matrices)
        rights = [basis @ matrix(vector, piece) for piece, basis in zip(matrices, bases, strict=True)]
        factors = yield torch.cat([right.view(-1) for right in rights])
        for piece, basis, right in zip(matrices, bases, rights, strict=True):
            few = few_rows(piece.columns)
            for rows, columns in zip(
                torch.split(matrix(vector, piece), few), torch.split(basis, few, dim=1), strict=True
            ):
                rows.sub_(columns.T @ right)
        for piece in dense:
            part = matrix(vector, piece)
            part.sub_(part.clone())
        return {"factors": factors.clone()}

    def expand(self, sums: list[torch.Tensor], out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw) -> None:
        matrices, dense = self.divided(pieces)
        if matrices:
            rights = torch.split(sums[1], [self.rank * piece.columns for piece in matrices])
            multiply(out, self.bases(sums[0], matrices), rights, matrices)
        place = self.rank * sum(piece.rows for piece in matrices)
        for piece in dense:
            here = matrix(out, piece)
            here.copy_(sums[0][place : place + here.numel()].view_as(here))
            place += here.numel()

    # -- the factors: rank x rows and rank x columns, so that every product reads the matrix along its rows ------------
    def divided(self, pieces: tuple[Piece, ...]) -> tuple[list[Piece], list[Piece]]:
        """The pieces that travel as two factors, and those that travel as they are."""
        low = {p for p in pieces if self.rank * (p.rows + p.columns) < p.rows * p.columns}
        return [p for p in pieces if p in low], [p for p in pieces if p not in low]

    def initial_factors(
        self, matrices: list[Piece], draw: Draw, before: torch.Tensor | None, device: torch.device
    ) -> list[torch.Tensor]:
        """Q': orthonormal rows, those of the round before and noise, or noise alone."""
        lengths = [self.rank * piece.columns for piece in matrices]
        source = draw.generator(torch.device("cpu"), shared=True)
        noise = torch.split(torch.randn(sum(lengths), generator=source, dtype=torch.float32).to(device), lengths)
        if before is None:
            return [orthonormal(new.view(self.rank, -1)) for new in noise]
        return [
            orthonormal(scaled(old.view(self.rank, -1)).add_(new.view(self.rank, -1), alpha=NOISE))
            for old, new in zip(torch.split(before, lengths), noise, strict=True)
        ]

    def bases(self, total: torch.Tensor, matrices: list[Piece]) -> list[torch.Tensor]:
        """P' of each matrix, from the sums of the first message."""
        lengths = [self.rank * piece.rows for piece in matrices]
        return [orthonormal(left.view(self.rank, -1)) for left in torch.split(total[: sum(lengths)], lengths)]


def matrix(vector: torch.Tensor, piece: Piece) -> torch.Tensor:
    """A piece of the vector, as a view."""
    return vector[piece.start : piece.start + piece.rows * piece.columns].view(piece.rows, piece.columns)


def multiply(
    out: torch.Tensor, bases: Sequence[torch.Tensor], rights: Sequence[torch.Tensor], matrices: list[Piece]
) -> None:
    """out <- P Q' for each of the matrices."""
    for piece, basis, right in zip(matrices, bases, rights, strict=True):
        # A copy: products may depend, in the last bit, on where in memory an operand begins.
        torch.mm(basis.T, right.clone().view(len(basis), -1), out=matrix(out, piece))


def scaled(rows: torch.Tensor) -> torch.Tensor:
    """Every row divided by its largest element; zeros where there is none, or where it is not finite."""
    return (rows / rows.abs().amax(1, keepdim=True)).nan_to_num_(0.0, 0.0, 0.0)


def orthonormal(rows: torch.Tensor) -> torch.Tensor:
    """Orthonormal rows with the span of these, at any scale; rows that vanish or depend on others are made up.

    By Householder reflections, which need no pivots and no second pass. Not finite where the rows are not.
    """
    columns: torch.Tensor = torch.linalg.qr(scaled(rows).T).Q
    return columns.T.contiguous().add_(rows.abs().max() * 0)
