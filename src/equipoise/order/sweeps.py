"""Balancing an epoch several times over, from sketches of its gradients that were kept until it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..core.device import on_host
from .prefix_norm import random_prefix
from .sign_terms import PAIR, ChooseSign, TermSigns, sign_sequentially

Indices = npt.NDArray[np.int64]

_BLOCK = 64  # terms whose products are computed together
_GAIN = 0.9  # of the largest prefix: a sweep that leaves more of it is the last one


class Kept(NamedTuple):
    """One worker's epoch."""

    rows: torch.Tensor  # [units, numbers], in the order in which they were visited; on the host
    steps: Indices  # in which they were visited


class Balanced(NamedTuple):
    orders: list[Indices]  # of every worker: [epochs, units], of its units as they were visited
    herding: float  # the largest prefix of the first of these orders, relative to a random one
    visited: float  # the same for the order in which the vectors were visited
    dimension: float  # effective: 1 / mean squared cosine between different terms


def no_orders(epochs: int) -> Indices:
    """Of a worker that has visited nothing."""
    return np.zeros((epochs, 0), dtype=np.int64)


def balance_kept(
    workers: list[Kept],
    signature: tuple[float, ...],
    sweeps: int,
    rule: Callable[[int], ChooseSign],
    epochs: Callable[[float], int] = lambda visited: 1,
) -> Balanced:
    """Balance the sums over all workers up to `sweeps` times; the best of these orders, then one for each epoch more.

        sweep:  v = a pair's difference (`PAIR`) or a centred unit (`SINGLE`), in the order of steps, then of ranks,
                s from the sign rule, S <- S + s v; then + to the front and - to the back, as after an epoch

    On fixed vectors every sweep does what an epoch of balancing does: the excess of the largest prefix over its floor
    halves. A sweep over pairs also separates neighbours, so every batch of the next epoch draws from twice as many of
    the last one. The order of each further epoch is one such sweep away from the one before: as balanced, with other
    batches. (Sweeps over single units end in an order that reproduces itself.) Every worker has visited something.
    rule: the sign rule of a sweep. epochs: from `visited` of the result to how many orders are wanted.
    """
    rows = torch.cat([kept.rows for kept in workers])
    rows = rows - rows.mean(0)
    starts = np.cumsum([0, *(len(kept.rows) for kept in workers)])
    steps = np.concatenate([kept.steps for kept in workers])
    by_step = np.argsort(steps, kind="stable")
    begins = np.flatnonzero(np.diff(steps[by_step], prepend=-1))
    sweep = _sweeper(rows, workers, starts, signature, rule)
    order = best = np.arange(len(rows))
    smallest, cosine = math.inf, 0.0
    for number in range(sweeps):
        order, found = sweep(order, number)
        cosine = cosine or found
        before, reached = smallest, _largest_prefix(rows, order[by_step], begins)
        if reached < smallest:
            smallest, best = reached, order
        if reached > _GAIN * before:
            break
    dimension = 1 / cosine if cosine else math.nan
    variance = float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2 / max(1, len(rows))
    expected = random_prefix(float(len(rows)), variance, dimension) or math.nan
    herding, visited = (h / expected for h in (smallest, _largest_prefix(rows, by_step, begins)))
    further = sweep if signature == PAIR else _sweeper(rows, workers, starts, PAIR, rule)
    orders = [best]
    while len(orders) < epochs(visited):
        orders.append(further(orders[-1], sweeps + len(orders) - 1)[0])
    stacked = np.stack(orders)
    return Balanced([stacked[:, lo:hi] - lo for lo, hi in pairwise(starts)], herding, visited, dimension)


def _sweeper(
    rows: torch.Tensor,
    workers: list[Kept],
    starts: Indices,
    signature: tuple[float, ...],
    rule: Callable[[int], ChooseSign],
) -> Callable[[Indices, int], tuple[Indices, float]]:
    """From an order and the number of a sweep to the next order, and the mean squared cosine between terms."""
    terms, sequence = _in_sequence(workers, len(signature))
    places = starts[terms[:, 0]][:, None] + len(signature) * terms[:, 1:] + np.arange(len(signature))
    bounds = np.searchsorted(terms[:, 0], np.arange(len(workers) + 1))  # of each worker's terms

    def sweep(order: Indices, number: int) -> tuple[Indices, float]:
        if not len(places):
            return order, 0.0
        signs, members = np.empty(len(places)), order[places]
        signs[sequence], cosine = _signs(rows, members[sequence], signature, rule(number))
        plus = np.outer(signs, signature) > 0
        parts = zip(pairwise(starts), pairwise(bounds), strict=True)
        return np.concatenate([_reordered(order[a:b], members[i:j], plus[i:j]) for (a, b), (i, j) in parts]), cosine

    return sweep


def _in_sequence(workers: list[Kept], width: int) -> tuple[Indices, Indices]:
    """(rank, number of the term) of all terms, and the sequence in which they get their signs.

    By the step that completes a term, its place among its worker's terms of that step, and its rank.
    """
    terms, keys = [], []
    for rank, kept in enumerate(workers):
        completed = kept.steps[width - 1 :: width][: len(kept.steps) // width]
        number = np.arange(len(completed))
        first = np.searchsorted(completed, completed)  # of the same step
        terms.append(np.stack([np.full(len(number), rank), number], 1))
        keys.append(np.stack([completed, number - first, np.full(len(number), rank)], 1))
    ranked = np.concatenate(keys)
    return np.concatenate(terms), np.lexsort(ranked.T[::-1])


def _signs(
    rows: torch.Tensor, members: Indices, signature: tuple[float, ...], choose_sign: ChooseSign
) -> tuple[npt.NDArray[np.float64], float]:
    """The signs of these terms, one after the other, and the mean squared cosine between them."""
    first, *second = (torch.index_select(rows, 0, torch.from_numpy(column)) for column in members.T.copy())
    v = first - second[0] if signature == PAIR else first
    total, signs, cosines = rows.new_zeros(rows.shape[1]), [], []
    for block in torch.split(v, _BLOCK):
        signed = sign_sequentially(on_host(block @ total).numpy(), on_host(block @ block.T).numpy(), choose_sign)
        total.addmv_(block.T, torch.as_tensor(signed.signs, dtype=total.dtype))
        signs.append(signed.signs)
        cosines.append(_cosine(signed))
    known = [cosine for cosine in cosines if cosine > 0]
    return np.concatenate(signs), sum(known) / len(known) if known else 0.0


def _cosine(signed: TermSigns) -> float:
    square = float(signed.squares.mean())
    return signed.cross / square**2 if 0 < square < math.inf and math.isfinite(signed.cross) else 0.0


def _reordered(order: Indices, members: Indices, plus: npt.NDArray[np.bool_]) -> Indices:
    """Units with + to the front, those with - to the back, reversed; one without a term to the middle."""
    rest = order[members.size :]
    return np.concatenate([members[plus], rest, members[~plus][::-1]])


def _largest_prefix(rows: torch.Tensor, order: Indices, begins: Indices) -> float:
    """The largest norm of a prefix sum of the rows in this order, at the end of a step."""
    prefixes = rows.index_select(0, torch.from_numpy(order)).cumsum_(0)
    if len(begins) < len(order):
        prefixes = prefixes[torch.from_numpy(np.append(begins[1:], len(order)) - 1)]
    return float(torch.linalg.vector_norm(prefixes, dim=1).max())
