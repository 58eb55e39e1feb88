"""Whole numbers of examples per class and worker, in proportion to the workers' speeds.

A cell should be |V_l| r_j / sum(r). Rounding each class alone drifts, because the left-overs always go to the same
workers; here they go to the worker that is furthest behind over all classes so far (error diffusion). Then every cell
is its quota rounded down or up, every class is dealt out, and every worker's total is within one of n r_j / sum(r).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..core.errors import UserError

SPEEDS = "relative speed of each worker, such as 1,2,4,8; equal if left out; `measured` finds out at the start"
_SNAP = 1e-9  # of an example: quotas this near to a whole number are one, whatever the speeds were multiplied by


def checked_speeds(speeds: Sequence[float] | None, workers: int | None = None) -> np.ndarray:
    """The speeds as an array, all 1 where none are given; what cannot be a speed is refused."""
    if speeds is None:
        if workers is None:
            raise UserError("how many workers? give workers=N or one speed per worker")
        return np.ones(workers)
    try:
        rates = np.asarray(speeds, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise UserError(f"speeds = {speeds!r}: give one number per worker, such as 1,2,4,8") from None
    if workers is not None and len(rates) != workers:
        raise UserError(f"{len(rates)} speeds for {workers} workers: give one per worker")
    if len(rates) == 0:
        raise UserError("speeds is empty: give one number per worker, such as 1,2,4,8")
    for worker, rate in enumerate(rates):
        if not (rate >= 0 and math.isfinite(rate)):
            raise UserError(
                f"speeds: worker {worker} has {rate}: a speed is a number above zero, relative to the others"
            )
    if not rates.any():
        raise UserError("speeds are all zero: give at least one worker a speed above zero")
    return rates


def known_speeds(speeds: Sequence[float] | str | None) -> Sequence[float] | None:
    if isinstance(speeds, str):
        raise UserError(
            "speeds = 'measured' needs workers that run: it works in eq.train and recipes; give numbers here"
        )
    return speeds


def check_speeds_option(speeds: Sequence[float] | str | None) -> None:
    """Refuse impossible speeds when they are given, before there are workers."""
    if isinstance(speeds, str) and speeds != "measured":
        raise UserError(f"speeds = {speeds!r}: takes one number per worker, such as 1,2,4,8, or 'measured'")
    if speeds is not None and not isinstance(speeds, str):
        checked_speeds(speeds)


def capacities(sizes: Sequence[int] | np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Examples of each class (rows) for each worker (columns)."""
    sizes = np.asarray(sizes, dtype=np.int64)
    # Dividing by the largest first keeps the sum finite, and the shares of 1:2 and of 1e308:2e308 alike.
    relative = np.asarray(speeds, dtype=np.float64) / np.max(speeds)
    quota = sizes[:, None] * (relative / math.fsum(relative))
    cells = np.floor(quota + _SNAP)
    loose = quota - cells > _SNAP
    behind = np.zeros(len(relative))
    for row in range(len(sizes)):
        spare = int(sizes[row] - cells[row].sum())
        behind += quota[row] - cells[row]
        # A stable sort of rounded deficits: workers that are equally far behind are served by number.
        order = [j for j in np.argsort(np.round(-behind, 6), kind="stable") if loose[row, j]]
        chosen = order[:spare]
        cells[row, chosen] += 1
        behind[chosen] -= 1
    counts = cells.astype(np.int64)
    _repair(counts, loose, np.floor(quota + _SNAP).astype(np.int64), quota.sum(0))
    assert (counts.sum(1) == sizes).all()
    return counts


def _repair(counts: np.ndarray, loose: np.ndarray, low: np.ndarray, totals: np.ndarray) -> None:
    """Move units between workers inside classes until every total is its quota rounded down or up.

    Error diffusion gets there by itself in all cases seen; that a way exists from any start follows from the
    integrality of flows.
    """
    least, most = np.floor(totals + _SNAP), np.ceil(totals - _SNAP)
    while True:
        sums = counts.sum(0)
        over, under = np.flatnonzero(sums > most), np.flatnonzero(sums < least)
        if len(over):
            path = _path(counts, loose, low, over, sums < most)
        elif len(under):
            path = _path(counts, loose, low, np.flatnonzero(sums > least), sums < least)
        else:
            return
        for row, giver, taker in path:
            counts[row, giver] -= 1
            counts[row, taker] += 1


def _path(
    counts: np.ndarray, loose: np.ndarray, low: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> list[tuple[int, int, int]]:
    """The shortest chain of moves (class, giver, taker) from one of `starts` to a worker where `ends` holds."""
    came: dict[int, tuple[int, int] | None] = {int(j): None for j in starts}
    queue = deque(came)
    up, down = loose & (counts > low), loose & (counts == low)
    while queue:
        giver = queue.popleft()
        if ends[giver] and came[giver] is not None:
            moves = []
            step = came[giver]
            while step is not None:
                row, before = step
                moves.append((row, before, giver))
                giver, step = before, came[before]
            return moves
        for row in np.flatnonzero(up[:, giver]).tolist():
            for taker in np.flatnonzero(down[row]).tolist():
                if taker not in came:
                    came[taker] = (row, giver)
                    queue.append(taker)
    raise AssertionError("a controlled rounding always exists")


def batch_sizes(speeds: Sequence[float], mean: float) -> list[int]:
    """Batch sizes in proportion to speeds, `mean` on average, at least 1: equal time per step, equal steps per epoch.

    Rounded so that the sizes of all workers together are exactly `mean` times their number.
    """
    rates = checked_speeds(speeds)
    if not rates.all():
        raise UserError(f"worker {int(np.argmin(rates))} has speed 0: leave it out, or give it a speed above zero")
    if not mean >= 1:
        raise UserError(f"mean = {mean}: at least one example per step is needed")
    sizes = capacities([round(mean * len(rates))], rates)[0]
    # One example at the least, taken from the largest: a step without examples would be no step.
    while sizes.min() < 1:
        sizes[np.argmin(sizes)] += 1
        sizes[np.argmax(sizes)] -= 1
    return sizes.tolist()
