"""A sum over workers with a look at what is summed, in one collective.

In a sum by pieces worker p holds piece p of everybody's vectors for a moment: it can say more of them than their sum (their
norms, how far they are apart), and what all pieces say goes round with the sums. All workers receive the same bits, so
whatever they decide from them they decide alike, whatever processors they have. `Look.vector` is one more vector per
worker of which nobody needs the sum: it travels one way only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from .ledger import mean_cost

# (rows, notes, start) -> numbers: `rows[m]` is a piece of worker m's vector from element `start` on.
See = Callable[[list[torch.Tensor], list[list[float]], int], list[float]]


class Look(NamedTuple):
    note: list[float]  # of this worker, for everybody
    see: See  # what a piece says: numbers that add up over pieces,
    numbers: int  # and how many they are
    vector: torch.Tensor | None = None  # to look at instead of the one that is summed

    @property
    def extra(self) -> int:
        return 0 if self.vector is None else self.vector.numel()


def pieces(elements: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of each worker's piece of a vector."""
    found, start = [], 0
    for rank in range(size):
        stop = start + elements // size + (rank < elements % size)
        found.append((start, stop))
        start = stop
    return found


def look_cost(elements: int, itemsize: int, rank: int, size: int, look: Look) -> tuple[int, int]:
    """Messages and bytes: an all-reduce of the vector, one way for the other one, notes and numbers to everybody."""
    if size == 1:
        return 0, 0
    messages, bytes = mean_cost(elements, itemsize, rank, size)
    start, stop = pieces(look.extra, size)[rank]
    return messages, bytes + (look.extra - (stop - start)) * itemsize + 8 * (size - 1) * (len(look.note) + look.numbers)


def added(findings: list[list[float]]) -> list[float]:
    """The sums over pieces."""
    return [add(list(column)) for column in zip(*findings, strict=True)]


def add(values: list[float]) -> float:
    """In order (the builtin `sum` rounds differently from one Python to the next)."""
    total = 0.0
    for value in values:
        total += value
    return total


def bits(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Numbers in full precision, dressed as elements of a dtype that only carries them."""
    return torch.tensor(numbers, dtype=torch.float64).view(dtype)


def numbers_of(carried: torch.Tensor) -> list[float]:
    return carried.cpu().clone().view(torch.float64).tolist()


def sum_rows(rows: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """In rank order, as every other sum here."""
    out.copy_(rows[0])
    for row in rows[1:]:
        out += row
    return out


AllToAll = Callable[[torch.Tensor, torch.Tensor, list[int], list[int]], object]  # received, sent, lengths of both


@torch.no_grad()
def over_network(
    tensor: torch.Tensor, look: Look, rank: int, size: int, all_to_all: AllToAll
) -> tuple[list[list[float]], list[float]]:
    """With two calls of `all_to_all`: pieces to their workers, sums and findings back."""
    bounds, others = pieces(tensor.numel(), size), pieces(look.extra, size)
    note = bits(look.note, tensor.dtype).to(tensor.device)
    empty = tensor.new_empty(0)
    rows = [
        torch.cat((tensor[a:b], empty if look.vector is None else look.vector[c:d], note))
        for (a, b), (c, d) in zip(bounds, others, strict=True)
    ]
    width = len(rows[rank])
    received = tensor.new_empty(size * width)
    all_to_all(received, torch.cat(rows), [width] * size, [len(row) for row in rows])
    table = list(received.view(size, width))
    (a, b), (c, d) = bounds[rank], others[rank]
    notes = [numbers_of(row[width - len(note) :]) for row in table]
    mine = [row[: b - a] for row in table]
    seen = look.see(
        *((mine, notes, a) if look.vector is None else ([row[b - a : b - a + d - c] for row in table], notes, c))
    )
    back = torch.cat((sum_rows(mine, torch.empty_like(mine[0])), bits(seen, tensor.dtype).to(tensor.device)))
    tail = len(back) - (b - a)
    widths = [stop - start + tail for start, stop in bounds]
    returned = tensor.new_empty(sum(widths))
    all_to_all(returned, back.repeat(size), widths, [len(back)] * size)
    findings = []
    for row, (a, b) in zip(returned.split(widths), bounds, strict=True):
        tensor[a:b].copy_(row[: b - a])
        findings.append(numbers_of(row[b - a :]))
    return notes, added(findings)


@torch.no_grad()
def in_one_place(tensors: list[torch.Tensor], looks: list[Look]) -> tuple[list[list[float]], list[float]]:
    """The same where one hand holds everybody's tensors."""
    size, notes, findings = len(tensors), [list(look.note) for look in looks], []
    own = [look.vector for look in looks if look.vector is not None]
    for rank, look in enumerate(looks):
        vectors = own or tensors
        start, stop = pieces(vectors[0].numel(), size)[rank]
        findings.append(look.see([v[start:stop] for v in vectors], notes, start))
    return notes, added(findings)
