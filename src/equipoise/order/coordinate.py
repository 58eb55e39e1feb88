"""Signs for the terms of all workers in one sequence: term 0 of worker 0, 1, ..., term 1 of worker 0, 1, ...

Nothing here gathers gradients. Every function changes `total` (S) in place and returns what was decided for all
workers, in that sequence, the same on every worker.
"""

from __future__ import annotations

import numpy as np
import torch

from ..comm.base import Comm
from ..signal.base import View
from ..signal.layers import Layers
from .balance import NOTHING, Decide, Decided, balance, in_sequence

Turns = list[tuple[int, int]]  # (term, worker) in sequence


def turns_of(counts: list[int]) -> Turns:
    return [(k, w) for k in range(max(counts, default=0)) for w, count in enumerate(counts) if k < count]


@torch.no_grad()
def by_shards(
    comm: Comm, total: torch.Tensor, view: View | None, terms: np.ndarray, counts: list[int], decide: Decide
) -> Decided:
    """Each worker holds one slice of S: it gets that slice of every difference, and partial products are summed.

    A worker sends its difference once, cut into slices, instead of to everybody: (W - 1) / W vectors a term.
    Afterwards only the own slice of `total` is up to date.
    """
    cuts = [len(total) * r // comm.size for r in range(comm.size + 1)]
    mine = slice(cuts[comm.rank], cuts[comm.rank + 1])
    signs: list[float] = []
    squares: list[float] = []
    for k in range(max(counts)):
        senders = [w for w, count in enumerate(counts) if k < count]
        incoming = {w: torch.empty_like(total[mine]) for w in senders if w != comm.rank}
        outgoing = {}
        if comm.rank in senders:
            assert view is not None
            made = view.vector(torch.as_tensor(terms[k], dtype=total.dtype, device=total.device))
            outgoing = {w: made[cuts[w] : cuts[w + 1]] for w in range(comm.size) if w != comm.rank}
            incoming[comm.rank] = made[mine]
        theirs = {w: piece for w, piece in incoming.items() if w != comm.rank}
        comm.exchange(outgoing, theirs).wait()
        rows = torch.stack([incoming[w] for w in senders])
        numbers = comm.sum(torch.cat([rows @ total[mine], (rows @ rows.T).flatten()]).double()).cpu().numpy()
        count = len(senders)
        decided = in_sequence(numbers[:count], numbers[count:].reshape(count, count), decide)
        total[mine].addmv_(rows.T, torch.as_tensor(decided.signs, dtype=total.dtype, device=total.device))
        signs += decided.signs.tolist()
        squares += decided.squares.tolist()
    return Decided(np.array(signs), np.array(squares), decided.cross)


@torch.no_grad()
def by_rows(
    comm: Comm, total: torch.Tensor, view: View | None, terms: np.ndarray, room: int, decide: Decide
) -> tuple[Decided, list[int]]:
    """Short vectors (sketches): everybody gets the differences of all workers and decides alike.

    One message with `room` for so many differences, its first row telling their number; a second one only where somebody
    has more. Gives the number of each worker's terms too.
    """
    message = total.new_zeros(1 + room, len(total))
    message[0, 0] = len(terms)
    if view is not None and 0 < len(terms) <= room:
        message[1 : 1 + len(terms)] = view.vectors(torch.as_tensor(terms, dtype=total.dtype, device=total.device))
    everybody = comm.gather(message)
    counts = [int(count) for count in everybody[:, 0, 0].tolist()]
    if max(counts) > room:
        return by_rows(comm, total, view, terms, max(counts), decide)
    if not any(counts):
        return NOTHING, counts
    rows = everybody[:, 1:].flatten(0, 1)[[w * room + k for k, w in turns_of(counts)]]
    decided = in_sequence(_array(rows @ total), _array(rows @ rows.T), decide)
    total.addmv_(rows.T, torch.as_tensor(decided.signs, dtype=total.dtype, device=total.device))
    return decided, counts


@torch.no_grad()
def by_factors(
    comm: Comm,
    total: torch.Tensor,
    view: Layers | None,
    terms: np.ndarray,
    counts: list[int],
    items: int,
    width: int,
    decide: Decide,
) -> Decided:
    """The factors of all workers' examples go round, not their gradients; S is moved by one sum over workers.

    Each worker computes the products of its own terms with S and with everybody's terms.
    """
    most = max(counts)
    message = total.new_zeros(items, width + most)
    if view is not None:
        message[: view.items, :width] = packed(view)
        # Behind the factors, the weight of the example in each of its worker's terms.
        message[: view.items, width : width + len(terms)] = torch.as_tensor(
            terms.T, dtype=total.dtype, device=total.device
        )
    everybody = comm.gather(message)
    table = torch.zeros(most, 1 + comm.size * most, dtype=torch.float64)
    if view is not None and len(terms):
        weights = torch.from_numpy(terms)
        others = unpacked(view, everybody[:, :, :width].flatten(0, 1))
        cross = (weights @ view.cross(others).double().cpu()).view(len(terms), comm.size, items).transpose(0, 1)
        theirs = everybody[:, :, width:].double().cpu()
        table[: len(terms), 0] = weights @ view.products(total).double().cpu()
        table[: len(terms), 1:] = torch.bmm(cross, theirs).transpose(0, 1).flatten(1)
    tables = comm.gather(table).flatten(0, 1).numpy()
    turns = turns_of(counts)
    places = [w * most + k for k, w in turns]
    decided = in_sequence(tables[places, 0], tables[places, 1:][:, places], decide)
    change = torch.zeros_like(total)
    if view is not None and len(terms):
        view.add_to(
            change,
            torch.as_tensor(own_signs(decided, turns, comm.rank) @ terms, dtype=total.dtype, device=total.device),
        )
    total += comm.sum(change)
    return decided


@torch.no_grad()
def by_stale(comm: Comm, total: torch.Tensor, view: View | None, terms: np.ndarray, decide: Decide) -> Decided:
    """Every worker decides against the S of the step's beginning (and its own terms), then all changes are summed.

    One sum of a vector a step. As good as exact while all terms of a step are fewer than an eighth of the effective
    dimension. The signs returned are this worker's own.
    """
    change = total.clone()
    decided = Decided(np.zeros(0), np.zeros(0), float("nan"))
    if view is not None and len(terms):
        decided = balance(change, view, terms, decide)
    total += comm.sum(change.sub_(total))
    return decided


def own_signs(decided: Decided, turns: Turns, rank: int) -> np.ndarray:
    return np.array([sign for sign, (_, w) in zip(decided.signs, turns, strict=True) if w == rank])


def packed(view: Layers) -> torch.Tensor:
    """[items, width]: the scale, then the factors of every layer."""
    factors = [t.reshape(view.items, -1).to(view.scale.dtype) for part in view.whole for t in part.tensors().values()]
    return torch.cat([view.scale[:, None], *factors], 1)


def unpacked(like: Layers, message: torch.Tensor) -> Layers:
    """A view of everybody's examples, with the layers taken in the ways of `like`."""
    count, start, parts = len(message), 1, []
    for part in like.whole:
        tensors = {}
        for name, tensor in part.tensors().items():
            numbers = tensor[0].numel()
            tensors[name] = message[:, start : start + numbers].reshape(count, *tensor.shape[1:]).to(tensor.dtype)
            start += numbers
        parts.append(part.with_tensors(tensors))
    return Layers.of_planned(parts, message[:, 0].contiguous(), like.dimension)


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy().astype(np.float64)
