"""When a worker is away or slow: spells of simulated time, written down or drawn at random."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UserError
from .units import SECONDS, quantity

_BLOCK = 256  # numbers drawn at once


class Spell(NamedTuple):
    """From `start` to `end` (inf: for good) the time of a step is multiplied by `factor` (inf: the worker is away)."""

    start: float
    end: float
    factor: float = math.inf


class Spells:
    """Spells that do not overlap, in order: planned ones, or one after the other at random, without an end.

    per_hour: of simulated time in between, on average; each lasts `seconds`.
    """

    def __init__(
        self,
        planned: Iterable[Spell] = (),
        *,
        per_hour: float = 0.0,
        seconds: float = 0.0,
        factor: float = math.inf,
        seed: Sequence[int] = (),
    ):
        self._spells = list(planned)
        self._starts = [spell.start for spell in self._spells]
        self.per_hour, self.seconds, self.factor = per_hour, seconds, factor
        self._rng = np.random.default_rng([*seed])

    def __bool__(self) -> bool:
        return bool(self._spells) or self.per_hour > 0

    def _draw(self, until: float) -> None:
        """All that start at or before this second, and the next one."""
        while self.per_hour and (not self._starts or self._starts[-1] <= until):
            end = self._spells[-1].end if self._spells else 0.0
            for gap in self._rng.exponential(3600.0 / self.per_hour, _BLOCK).tolist():
                self._spells.append(Spell(end + gap, end + gap + self.seconds, self.factor))
                end = self._spells[-1].end
            self._starts = [spell.start for spell in self._spells]

    def at(self, time: float) -> Spell | None:
        """The one that is on at this second."""
        self._draw(time)
        number = bisect.bisect_right(self._starts, time) - 1
        spell = self._spells[number] if number >= 0 else None
        return spell if spell is not None and time < spell.end else None

    def starting(self, after: float, until: float) -> list[Spell]:
        """Those that start in (after, until]."""
        self._draw(until)
        return self._spells[bisect.bisect_right(self._starts, after) : bisect.bisect_right(self._starts, until)]

    def next_change(self, time: float) -> float:
        """The first second after this one at which a spell starts or ends."""
        self._draw(time)
        number = bisect.bisect_right(self._starts, time)
        start = self._starts[number] if number < len(self._starts) else math.inf
        on = self.at(time)
        return start if on is None else min(start, on.end)


def planned(rows: Any, worker: int, kind: str) -> list[tuple[float, ...]]:
    """Checked rows (start, end) of being away, or (start, end, factor) of being slow, as numbers."""
    example = (60, 90) if kind == "away" else (60, 90, 3)
    checked: list[tuple[float, ...]] = []
    for row in rows:
        what = f"{kind} of worker {worker}: {row!r}"
        if not isinstance(row, (list, tuple)) or len(row) != len(example):
            raise UserError(f"{what}: give when it begins and ends{', and a factor' * (kind == 'slow')}, as {example}")
        start, end = (moment(value, what) for value in row[:2])
        if not (checked[-1][1] if checked else 0.0) <= start < end:
            raise UserError(f"{what} must end after it begins, and begin after the end of the one before")
        if not all(_number(factor) and 0 < factor < math.inf for factor in row[2:]):
            raise UserError(f"{what}: the factor must be a number above zero")
        checked.append((start, end, *map(float, row[2:])))
    return checked


def moment(value: Any, what: str) -> float:
    """A simulated second: a number, "90 s" or "2 min"; 0 and infinity too."""
    seconds = float(value) if _number(value) else quantity(value, SECONDS, what)
    if not seconds >= 0:
        raise UserError(f"{what}: {value!r} must not be negative")
    return seconds


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
