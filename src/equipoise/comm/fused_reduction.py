"""A sum over workers and statistics of what is summed, in one collective.

Between a reduce-scatter and its all-gather, rank p holds chunk p of every worker's vector. There it can compute more
than the sum: norms, inner products, distances between workers. These statistics add up over chunks and travel with the
all-gather. All workers receive the same bits, so decisions based on them agree on any hardware.
`FusedReduction.vector` is a second vector per worker of which only the statistics are needed: it is not gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from .ledger import mean_cost

# (rows, metadata, start) -> numbers: `rows[m]` is a chunk of worker m's vector from element `start` on.
MapChunk = Callable[[list[torch.Tensor], list[list[float]], int], list[float]]


class FusedReduction(NamedTuple):
    metadata: list[float]  # of this worker; every worker receives it
    map_chunk: MapChunk  # statistics of a chunk: numbers that add up over chunks
    outputs: int  # how many numbers `map_chunk` returns
    vector: torch.Tensor | None = None  # the vector that `map_chunk` sees instead of the one that is summed

    @property
    def extra(self) -> int:
        """Elements of the second vector."""
        return 0 if self.vector is None else self.vector.numel()


def metadata_only(numbers: list[float]) -> FusedReduction:
    """A sum that carries a few numbers of every worker and no statistics."""
    return FusedReduction(numbers, lambda rows, metadata, start: [], 0)


def chunks(elements: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of each worker's chunk of a vector."""
    return [chunk(elements, size, rank) for rank in range(size)]


def chunk(elements: int, size: int, rank: int) -> tuple[int, int]:
    """Start and stop of one of so many chunks; the first ones are longer by one where they cannot be equal."""
    length, longer = divmod(elements, size)
    start = rank * length + min(rank, longer)
    return start, start + length + (rank < longer)


def fused_cost(elements: int, itemsize: int, rank: int, size: int, reduction: FusedReduction) -> tuple[int, int]:
    """Messages and bytes: an all-reduce of the vector, one way for the second one, the numbers to every worker."""
    if size == 1:
        return 0, 0
    messages, bytes = mean_cost(elements, itemsize, rank, size)
    start, stop = chunks(reduction.extra, size)[rank]
    numbers = len(reduction.metadata) + reduction.outputs
    return messages, bytes + (reduction.extra - (stop - start)) * itemsize + 8 * (size - 1) * numbers


def sum_columns(partials: list[list[float]]) -> list[float]:
    """The sums over chunks."""
    return [sum_in_order(list(column)) for column in zip(*partials, strict=True)]


def sum_in_order(values: list[float]) -> float:
    """Left to right (the builtin `sum` rounds differently from one Python to the next)."""
    total = 0.0
    for value in values:
        total += value
    return total


def pack_floats(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Numbers in full precision, reinterpreted as elements of the dtype that carries them."""
    return torch.tensor(numbers, dtype=torch.float64).view(dtype)


def unpack_rows(carried: list[torch.Tensor]) -> list[list[float]]:
    """The numbers of several messages, equally many in each. They are copied from a device together."""
    rows: list[list[float]] = torch.stack(carried).cpu().view(torch.float64).tolist() if carried else []
    return rows


def sum_rows(rows: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """In rank order, as every other sum here."""
    out.copy_(rows[0])
    for row in rows[1:]:
        out += row
    return out


AllToAll = Callable[[torch.Tensor, torch.Tensor, list[int], list[int]], object]  # received, sent, lengths of both


@torch.no_grad()
def reduce_over_network(
    tensor: torch.Tensor, reduction: FusedReduction, rank: int, size: int, all_to_all: AllToAll
) -> tuple[list[list[float]], list[float]]:
    """With two calls of `all_to_all`: chunks to their ranks, then sums and statistics to all."""
    bounds, second_bounds = chunks(tensor.numel(), size), chunks(reduction.extra, size)
    own = pack_floats(reduction.metadata, tensor.dtype).to(tensor.device)
    empty = tensor.new_empty(0)
    rows = [
        torch.cat((tensor[a:b], empty if reduction.vector is None else reduction.vector[c:d], own))
        for (a, b), (c, d) in zip(bounds, second_bounds, strict=True)
    ]
    width = len(rows[rank])
    received = tensor.new_empty(size * width)
    all_to_all(received, torch.cat(rows), [width] * size, [len(row) for row in rows])
    table = list(received.view(size, width))
    (a, b), (c, d) = bounds[rank], second_bounds[rank]
    metadata = unpack_rows([row[width - len(own) :] for row in table])
    summed = [row[: b - a] for row in table]
    if reduction.vector is None:
        statistics = reduction.map_chunk(summed, metadata, a)
    else:
        statistics = reduction.map_chunk([row[b - a : b - a + d - c] for row in table], metadata, c)
    packed = pack_floats(statistics, tensor.dtype).to(tensor.device)
    back = torch.cat((sum_rows(summed, torch.empty_like(summed[0])), packed))
    tail = len(back) - (b - a)
    widths = [stop - start + tail for start, stop in bounds]
    returned = tensor.new_empty(sum(widths))
    all_to_all(returned, back.repeat(size), widths, [len(back)] * size)
    tails = []
    for row, (a, b) in zip(torch.split(returned, widths), bounds, strict=True):
        tensor[a:b].copy_(row[: b - a])
        tails.append(row[b - a :])
    return metadata, sum_columns(unpack_rows(tails))


@torch.no_grad()
def reduce_in_memory(
    tensors: list[torch.Tensor], reductions: list[FusedReduction]
) -> tuple[list[list[float]], list[float]]:
    """The same statistics where one process holds all workers' tensors. The sum is left to the caller."""
    size, metadata, partials = len(tensors), [list(reduction.metadata) for reduction in reductions], []
    second = [reduction.vector for reduction in reductions if reduction.vector is not None]
    for rank, reduction in enumerate(reductions):
        vectors = second or tensors
        start, stop = chunks(vectors[0].numel(), size)[rank]
        partials.append(reduction.map_chunk([v[start:stop] for v in vectors], metadata, start))
    return metadata, sum_columns(partials)
