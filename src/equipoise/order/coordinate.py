"""Signs for the terms of all workers in one sequence: term 0 of worker 0, 1, ..., term 1 of worker 0, 1, ...

Nothing here gathers gradients. Every function changes `total` (S) in place and returns what was decided for all
workers, in that sequence, the same on every worker.
"""

from __future__ import annotations

import numpy as np
import torch

from ..comm.base import Comm
from ..signal.base import GradientView
from ..signal.layers import Layers
from .balance import NOTHING, Decide, Decided, balance, in_sequence
from .factors import Room, fits, message_of, slices_of

Turns = list[tuple[int, int]]  # (term, worker) in sequence


def turns_of(counts: list[int]) -> Turns:
    return [(k, w) for k in range(max(counts, default=0)) for w, count in enumerate(counts) if k < count]


@torch.no_grad()
def by_shards(
    comm: Comm, total: torch.Tensor, view: GradientView | None, terms: np.ndarray, decide: Decide
) -> tuple[Decided, list[int]]:
    """Each worker holds one slice of S: it gets that slice of every difference, and partial products are summed.

    A worker sends its difference once, cut into slices, instead of to everybody: (W - 1) / W vectors a term.
    Afterwards only the own slice of `total` is up to date. Gives the number of each worker's terms too.
    """
    counts = comm.gather(torch.tensor([len(terms)])).flatten().tolist()
    if not any(counts):
        return NOTHING, counts
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
    return Decided(np.array(signs), np.array(squares), decided.cross), counts


@torch.no_grad()
def by_rows(
    comm: Comm, total: torch.Tensor, steps: list[torch.Tensor], room: int, decide: Decide
) -> list[tuple[Decided, list[int]]]:
    """Short vectors (sketches): everybody gets the differences of all workers and decides alike, a step after the other.

    No difference depends on a sign, so those of several `steps` may go round together. One message with `room` for so many
    differences a step, whose first row tells their number; a second one only where somebody has more. Gives for every
    step what was decided, and the number of each worker's terms.
    """
    message = total.new_zeros(len(steps), 1 + room, len(total))
    for part, rows in zip(message, steps, strict=True):
        part[0, 0] = len(rows)
        part[1 : 1 + len(rows)] = rows[:room]
    everybody = comm.gather(message)
    numbers = [[int(count) for count in row] for row in everybody[:, :, 0, 0].T.tolist()]
    most = max(max(counts) for counts in numbers)
    if most > room:
        return by_rows(comm, total, steps, most, decide)
    found = []
    for step, counts in enumerate(numbers):
        if not any(counts):
            found.append((NOTHING, counts))
            continue
        rows = everybody[:, step, 1:].flatten(0, 1)[[w * room + k for k, w in turns_of(counts)]]
        decided = in_sequence(_array(rows @ total), _array(rows @ rows.T), decide)
        total.addmv_(rows.T, torch.as_tensor(decided.signs, dtype=total.dtype, device=total.device))
        found.append((decided, counts))
    return found


@torch.no_grad()
def by_stale(comm: Comm, total: torch.Tensor, view: GradientView | None, terms: np.ndarray, decide: Decide) -> Decided:
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


@torch.no_grad()
def by_factors(
    comm: Comm, total: torch.Tensor, view: Layers | None, terms: np.ndarray, room: Room, decide: Decide
) -> tuple[Decided, list[int], Room]:
    """Change this worker's slice of S; the signs of all workers in sequence, the number of each one's terms, and the room.

    A message that has no room for what somebody has is sent again with room for it.
    """
    everybody = comm.gather(message_of(room, view, terms, total))
    heads = [[int(number) for number in row] for row in everybody[:, 0, -room.head :].tolist()]
    counts = [head[1] for head in heads]
    if not all(fits(head, room) for head in heads):
        items, most, *lengths = (max(column) for column in zip(*heads, strict=True))
        forms = [form._replace(length=max(form.length, t)) for form, t in zip(room.forms, lengths, strict=True)]
        larger = Room(max(room.items, items), max(room.terms, most), forms, room.shared)
        return by_factors(comm, total, view, terms, larger, decide)
    if not any(counts):
        return NOTHING, counts, room
    slices = slices_of(comm, room)
    rows = everybody.flatten(0, 1)
    weights = everybody[:, :, room.width : room.width + room.terms].double().cpu()
    mine = slices.view(rows, mine=True)
    partial = (mine.products(total).double().cpu().view(comm.size, 1, room.items) @ weights).flatten()
    table = _gram(slices.view(rows, mine=False), weights, _partners(comm) if room.shared else None, comm.rank)
    products, gram = partial.numpy(), table.numpy()
    if room.shared:
        products, gram = _together(comm.gather(torch.cat([partial, table.flatten()])).numpy(), comm.size, room.terms)
    places = [w * room.terms + k for k, w in turns_of(counts)]
    decided = in_sequence(products[places], gram[np.ix_(places, places)], decide)
    signs = torch.zeros(comm.size, room.terms, 1, dtype=torch.float64)
    signs.view(-1)[places] = torch.from_numpy(decided.signs)
    mine.add_to(total, (weights @ signs).flatten().to(total))
    return decided, counts, room


def _partners(comm: Comm) -> list[tuple[int, int]]:
    """Ranges of workers whose terms this one multiplies with its own: each two workers meet once, at one of them."""
    half = (comm.size + 1) // 2 + (comm.size % 2 == 0 and comm.rank < comm.size // 2)
    stop = comm.rank + half
    return [(comm.rank, min(stop, comm.size)), *([(0, stop - comm.size)] if stop > comm.size else [])]


def _gram(view: Layers, weights: torch.Tensor, partners: list[tuple[int, int]] | None, rank: int) -> torch.Tensor:
    """Products of terms: all with all, or this worker's with its partners' (zeros elsewhere)."""
    size, items, terms = weights.shape
    if partners is None:
        table = view.gram().double().cpu().view(size, items, size, items)
        return torch.einsum("vik,viwj,wjl->vkwl", weights, table, weights).reshape(size * terms, size * terms)
    found = torch.zeros(size, terms, terms, dtype=torch.float64)  # partner, own term, its term
    own = _rows(view, rank * items, (rank + 1) * items)
    for first, last in partners:
        cross = own.cross(_rows(view, first * items, last * items)).double().cpu()
        cross = (weights[rank].T @ cross).view(terms, last - first, items).transpose(0, 1)
        found[first:last] = torch.bmm(cross, weights[first:last])
    return found


def _rows(view: Layers, start: int, stop: int) -> Layers:
    parts = [part.with_tensors({n: t[start:stop] for n, t in part.tensors().items()}) for part in view.whole]
    return Layers.of_planned(parts, view.scale[start:stop], view.dimension)


def _together(tables: np.ndarray, size: int, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Everybody's partial products in rank order, and their parts of the table of products of terms."""
    products = tables[0, : size * terms].copy()
    for row in tables[1:]:
        products += row[: size * terms]
    found = tables[:, size * terms :].reshape(size, size, terms, terms).transpose(0, 2, 1, 3).copy()
    for w in range(size):
        found[w, :, w] /= 2  # it is its own mirror image
    gram = found.reshape(size * terms, size * terms)
    return products, gram + gram.T


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy().astype(np.float64)
