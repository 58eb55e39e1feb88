"""How many examples of each class a worker receives, in proportion to the workers' speeds, rounded to integers.

A cell should be |V_l| r_j / sum(r). Rounding each class on its own drifts, because the remaining examples always go to
the same workers; here they go to the worker that is furthest below its quota over all classes so far (error diffusion).
Then every cell is its quota rounded down or up, the cells of a class add up to its size, and every worker's total is
within one of n r_j / sum(r).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..core.errors import UserError

SPEEDS = "relative speed of each worker, such as 1,2,4,8; equal if omitted; `measured` measures them at the start"
_SNAP = 1e-9  # quotas this close to an integer count as one, so that multiplying all speeds changes nothing


def checked_speeds(speeds: Sequence[float] | None, workers: int | None = None) -> np.ndarray:
    """The speeds as an array, all 1 where none are given. Negative, infinite or all-zero speeds are refused."""
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
    """The speeds, refused where they are still to be measured."""
    if isinstance(speeds, str):
        raise UserError(
            "speeds = 'measured' needs workers that run: it works in eq.train and recipes; give numbers here"
        )
    return speeds


def check_speeds_option(speeds: Sequence[float] | str | None) -> None:
    """Refuse impossible speeds at construction, before the world size is known."""
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
    fractional = quota - cells > _SNAP
    deficit = np.zeros(len(relative))
    for row in range(len(sizes)):
        remaining = int(sizes[row] - cells[row].sum())
        deficit += quota[row] - cells[row]
        # A stable sort of rounded deficits: among workers with equal deficits the lower rank comes first.
        order = [j for j in np.argsort(np.round(-deficit, 6), kind="stable") if fractional[row, j]]
        chosen = order[:remaining]
        cells[row, chosen] += 1
        deficit[chosen] -= 1
    counts: np.ndarray = cells.astype(np.int64)
    _fix_totals(counts, fractional, np.floor(quota + _SNAP).astype(np.int64), quota.sum(0))
    assert (counts.sum(1) == sizes).all()
    return counts


def _fix_totals(counts: np.ndarray, fractional: np.ndarray, low: np.ndarray, totals: np.ndarray) -> None:
    """Move examples between workers inside classes until every total is its quota rounded down or up.

    Error diffusion alone was enough in all cases seen. That a sequence of moves exists from any start follows from the
    integrality of flows.
    """
    least, most = np.floor(totals + _SNAP), np.ceil(totals - _SNAP)
    while True:
        sums = counts.sum(0)
        over, under = np.flatnonzero(sums > most), np.flatnonzero(sums < least)
        if len(over):
            path = _shortest_path(counts, fractional, low, over, sums < most)
        elif len(under):
            path = _shortest_path(counts, fractional, low, np.flatnonzero(sums > least), sums < least)
        else:
            return
        for row, giver, taker in path:
            counts[row, giver] -= 1
            counts[row, taker] += 1


def _shortest_path(
    counts: np.ndarray, fractional: np.ndarray, low: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> list[tuple[int, int, int]]:
    """The shortest sequence of moves (class, giver, taker) from one of `starts` to a worker where `ends` holds."""
    reached_from: dict[int, tuple[int, int] | None] = {int(j): None for j in starts}
    queue = deque(reached_from)
    rounded_up, rounded_down = fractional & (counts > low), fractional & (counts == low)
    while queue:
        giver = queue.popleft()
        if ends[giver] and reached_from[giver] is not None:
            moves = []
            step = reached_from[giver]
            while step is not None:
                row, before = step
                moves.append((row, before, giver))
                giver, step = before, reached_from[before]
            return moves
        for row in np.flatnonzero(rounded_up[:, giver]).tolist():
            for taker in np.flatnonzero(rounded_down[row]).tolist():
                if taker not in reached_from:
                    reached_from[taker] = (row, giver)
                    queue.append(taker)
    raise AssertionError("a controlled rounding always exists")


def batch_sizes(speeds: Sequence[float], mean: float) -> list[int]:
    """Batch sizes in proportion to speeds, `mean` on average, at least 1: equal time per step, equal steps per epoch.

    Rounded so that the sizes of all workers add up to `mean` times the world size.
    """
    rates = checked_speeds(speeds)
    if not rates.all():
        raise UserError(f"worker {int(np.argmin(rates))} has speed 0: leave it out, or give it a speed above zero")
    if not mean >= 1:
        raise UserError(f"mean = {mean}: at least one example per step is needed")
    sizes = capacities([round(mean * len(rates))], rates)[0]
    # At least one example, taken from the largest: a step needs an example.
    while sizes.min() < 1:
        sizes[np.argmin(sizes)] += 1
        sizes[np.argmax(sizes)] -= 1
    return [int(size) for size in sizes]
