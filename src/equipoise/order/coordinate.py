"""Signs for the terms of all workers in one sequence: term 0 of rank 0, 1, ..., then term 1 of rank 0, 1, ...

No function here gathers gradients. Each one updates `total` (S) in place and returns the signs of all workers' terms
in that sequence, the same on every worker.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..comm.base import Comm
from ..core.device import on_host
from ..signal.base import GradientView
from ..signal.factor_view import FactorView
from .factor_messages import BufferLayout, local_slices, pack_message
from .sign_terms import NO_TERMS, ChooseSign, Floats, TermSigns, sign_sequentially, sign_terms


class Coordinated(NamedTuple):
    """The signs of all workers' terms, and how many terms each worker had."""

    signed: TermSigns
    counts: list[int]


def interleaved(counts: list[int]) -> list[tuple[int, int]]:
    """(term, rank) in the sequence in which all workers' terms get their signs."""
    return [(k, w) for k in range(max(counts, default=0)) for w, count in enumerate(counts) if k < count]


@torch.no_grad()
def by_shards(
    comm: Comm, total: torch.Tensor, view: GradientView | None, terms: Floats, choose_sign: ChooseSign
) -> Coordinated:
    """Each worker holds one slice of S and receives that slice of every difference; partial products are summed.

    A worker sends its difference once, in slices, and not to every worker: (W - 1) / W vectors per term. Afterwards
    only the own slice of `total` is up to date.
    """
    counts = comm.gather(torch.tensor([len(terms)])).flatten().tolist()
    if not any(counts):
        return Coordinated(NO_TERMS, counts)
    bounds = [len(total) * r // comm.size for r in range(comm.size + 1)]
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    signs: list[float] = []
    squares: list[float] = []
    for k in range(max(counts)):
        senders = [w for w, count in enumerate(counts) if k < count]
        slices = {w: torch.empty_like(total[own]) for w in senders if w != comm.rank}
        outgoing = {}
        if comm.rank in senders:
            assert view is not None
            vector = view.vector(torch.as_tensor(terms[k], dtype=total.dtype, device=total.device))
            outgoing = {w: vector[bounds[w] : bounds[w + 1]] for w in range(comm.size) if w != comm.rank}
            slices[comm.rank] = vector[own]
        incoming = {w: received for w, received in slices.items() if w != comm.rank}
        comm.exchange(outgoing, incoming).wait()
        rows = torch.stack([slices[w] for w in senders])
        numbers = comm.sum(on_host(torch.cat([rows @ total[own], (rows @ rows.T).flatten()]))).numpy()
        count = len(senders)
        signed = sign_sequentially(numbers[:count], numbers[count:].reshape(count, count), choose_sign)
        total[own].addmv_(rows.T, torch.as_tensor(signed.signs, dtype=total.dtype, device=total.device))
        signs += signed.signs.tolist()
        squares += signed.squares.tolist()
    return Coordinated(TermSigns(np.array(signs), np.array(squares), signed.cross), counts)


@torch.no_grad()
def by_rows(
    comm: Comm, total: torch.Tensor, steps: list[torch.Tensor], capacity: int, choose_sign: ChooseSign
) -> list[Coordinated]:
    """Short vectors (sketches): every worker receives all differences and computes the same signs, step by step.

    No difference depends on a sign, so those of several `steps` may share a message. It holds `capacity` differences
    per step, and its first row says how many there are. A second message follows only where a worker has more. Returns
    one result per step.
    """
    message = total.new_zeros(len(steps), 1 + capacity, len(total))
    for buffer, rows in zip(message, steps, strict=True):
        buffer[0, 0] = len(rows)
        buffer[1 : 1 + len(rows)] = rows[:capacity]
    gathered = comm.gather(message)
    counts_of_steps = [[int(count) for count in row] for row in gathered[:, :, 0, 0].T.tolist()]
    most = max(max(counts) for counts in counts_of_steps)
    if most > capacity:
        return by_rows(comm, total, steps, most, choose_sign)
    results = []
    for step, counts in enumerate(counts_of_steps):
        if not any(counts):
            results.append(Coordinated(NO_TERMS, counts))
            continue
        rows = gathered[:, step, 1:].flatten(0, 1)[[w * capacity + k for k, w in interleaved(counts)]]
        signed = sign_sequentially(_array(rows @ total), _array(rows @ rows.T), choose_sign)
        total.addmv_(rows.T, torch.as_tensor(signed.signs, dtype=total.dtype, device=total.device))
        results.append(Coordinated(signed, counts))
    return results


@torch.no_grad()
def by_stale(
    comm: Comm, total: torch.Tensor, view: GradientView | None, terms: Floats, choose_sign: ChooseSign
) -> TermSigns:
    """Every worker signs its terms against S as it was before the step, then all changes of S are summed.

    One sum of a vector per step. As good as exact while all terms of a step are fewer than an eighth of the effective
    dimension. The signs returned are this worker's own.
    """
    change = total.clone()
    signed = NO_TERMS
    if view is not None and len(terms):
        signed = sign_terms(change, view, terms, choose_sign)
    total += comm.sum(change.sub_(total))
    return signed


@torch.no_grad()
def by_factors(
    comm: Comm,
    total: torch.Tensor,
    view: FactorView | None,
    terms: Floats,
    layout: BufferLayout,
    choose_sign: ChooseSign,
) -> tuple[Coordinated, BufferLayout]:
    """Update this worker's slice of S from the factors of all workers. Returns the layout that was used, too.

    Where a worker has more than the layout holds, all workers send again with a larger one.
    """
    gathered = comm.gather(pack_message(layout, view, terms, total))
    headers = [[int(number) for number in row] for row in gathered[:, 0, -layout.header :].tolist()]
    if not all(layout.fits(header) for header in headers):
        return by_factors(comm, total, view, terms, layout.grown(headers), choose_sign)
    counts = [header[1] for header in headers]
    if not any(counts):
        return Coordinated(NO_TERMS, counts), layout
    slices = local_slices(comm, layout)
    rows = gathered.flatten(0, 1)
    weights = on_host(gathered[:, :, layout.width : layout.width + layout.terms])
    own = slices.view(rows, own=True)
    partial = (on_host(own.products(total)).view(comm.size, 1, layout.items) @ weights).flatten()
    table = _gram(slices.view(rows, own=False), weights, _partners(comm) if layout.sharded else None, comm.rank)
    products, gram = partial.numpy(), table.numpy()
    if layout.sharded:
        tables = comm.gather(torch.cat([partial, table.flatten()])).numpy()
        products, gram = _assemble(tables, comm.size, layout.terms)
    indices = [w * layout.terms + k for k, w in interleaved(counts)]
    signed = sign_sequentially(products[indices], gram[np.ix_(indices, indices)], choose_sign)
    signs = torch.zeros(comm.size, layout.terms, 1, dtype=torch.float64)
    signs.view(-1)[indices] = torch.from_numpy(signed.signs)
    own.add_to(total, (weights @ signs).flatten().to(total))
    return Coordinated(signed, counts), layout


def _partners(comm: Comm) -> list[tuple[int, int]]:
    """Ranges of ranks whose terms this one multiplies with its own: each pair of workers is computed by one of them."""
    half = (comm.size + 1) // 2 + (comm.size % 2 == 0 and comm.rank < comm.size // 2)
    stop = comm.rank + half
    return [(comm.rank, min(stop, comm.size)), *([(0, stop - comm.size)] if stop > comm.size else [])]


def _gram(view: FactorView, weights: torch.Tensor, partners: list[tuple[int, int]] | None, rank: int) -> torch.Tensor:
    """Products of terms: all with all, or this worker's with its partners' (zeros elsewhere)."""
    size, items, terms = weights.shape
    if partners is None:
        table = on_host(view.gram()).view(size, items, size, items)
        return torch.einsum("vik,viwj,wjl->vkwl", weights, table, weights).reshape(size * terms, size * terms)
    products = torch.zeros(size, terms, terms, dtype=torch.float64)  # partner, own term, its term
    own = _rows(view, rank * items, (rank + 1) * items)
    for first, last in partners:
        cross = on_host(own.cross(_rows(view, first * items, last * items)))
        cross = (weights[rank].T @ cross).view(terms, last - first, items).transpose(0, 1)
        products[first:last] = torch.bmm(cross, weights[first:last])
    return products


def _rows(view: FactorView, start: int, stop: int) -> FactorView:
    layers = [factors.with_tensors({n: t[start:stop] for n, t in factors.tensors().items()}) for factors in view.direct]
    return FactorView.from_planned(layers, view.scale[start:stop], view.dimension)


def _assemble(tables: Floats, size: int, terms: int) -> tuple[Floats, Floats]:
    """`<S, v>` and `<v, v>` of all terms from the workers' parts: partial products are added in rank order."""
    products = tables[0, : size * terms].copy()
    for row in tables[1:]:
        products += row[: size * terms]
    blocks = tables[:, size * terms :].reshape(size, size, terms, terms).transpose(0, 2, 1, 3).copy()
    for w in range(size):
        blocks[w, :, w] /= 2  # the diagonal blocks are in both halves of the sum below
    gram = blocks.reshape(size * terms, size * terms)
    return products, gram + gram.T


def _array(values: torch.Tensor) -> Floats:
    return values.detach().cpu().numpy().astype(np.float64)
