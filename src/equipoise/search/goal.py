"""What a search looks for: the least time or bytes to a target, or the best model within a limit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from ..compare.table import byte_unit, metric_of
from ..core.errors import UserError, did_you_mean
from ..loop.until import Until
from ..observe.events import read_events
from ..simulate.units import SECONDS, quantity, seconds

MINIMISE = ("time", "bytes")
_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_MONEY = ("USD", "EUR")


def _above_zero(value: float, within: str) -> float:
    if not 0 < value < math.inf:
        raise UserError(f"--within {within!r}: must be above zero, and finite")
    return value


class Goal(NamedTuple):
    """With `until` the least time or bytes to it. Without, the best metric within `seconds` or `bytes`."""

    metric: str
    until: Until | None = None
    minimise: str = "time"
    seconds: float = math.inf
    bytes: float = math.inf

    @classmethod
    def of(cls, until: str | None, within: str | None, minimise: str, price: float | None, workers: int) -> Goal:
        """From the flags. `price`: of a worker for an hour, which makes an amount of money a limit of time."""
        if minimise not in MINIMISE:
            raise UserError(f"--minimise {minimise}: {did_you_mean(minimise, [*MINIMISE])}")
        if (until is None) == (within is None):
            raise UserError(
                "say what the goal is: --until accuracy=0.9 (or loss=0.3) for the least time, or --within '10 min' "
                "(or '2 GB', or '5 USD' with --price) for the best model"
            )
        if until is not None:
            target = Until.parse(until, "--until")
            return cls(target.metric, target, minimise)
        assert within is not None
        if minimise != "time":
            raise UserError(f"--minimise {minimise} goes with --until: --within looks for the best model")
        unit = within.lstrip(" 0123456789.+-")
        if unit in _BYTES:
            return cls("accuracy", bytes=_above_zero(quantity(within, _BYTES, "--within"), within))
        if unit.upper() in _MONEY:
            if price is None:
                raise UserError(f"--within {within!r}: what does a worker cost? Add --price, for an hour of one worker")
            amount = quantity(within, dict.fromkeys(_MONEY, 1.0), "--within")
            return cls("accuracy", seconds=3600 * _above_zero(amount, within) / (price * workers))
        return cls("accuracy", seconds=_above_zero(quantity(within, SECONDS, "--within"), within))

    @property
    def name(self) -> str:
        if self.until is not None:
            return f"the fewest {'seconds' if self.minimise == 'time' else 'bytes'} to {self.until}"
        if math.isfinite(self.seconds):
            return f"the best model within {seconds(self.seconds)}"
        scale, unit = byte_unit(self.bytes)
        return f"the best model within {self.bytes / scale:.3g}{unit}"

    def score(self, result: dict[str, Any], folder: Path) -> tuple[float, float]:
        """Smaller is better: (0, the cost of the target), or (1, how bad the model is within the limits)."""
        if self.until is not None and result.get("reached") is not None:
            return 0.0, float(result["reached"]["simulated_seconds" if self.minimise == "time" else "bytes"])
        name, value = metric_of(result, self.metric)
        if result["bytes"] > self.bytes:
            value = self._within_bytes(result, folder, name)
        return 1.0, -value if name == "accuracy" else value

    def _within_bytes(self, result: dict[str, Any], folder: Path, metric: str) -> float:
        """The metric at the last evaluation before the limit; events have the bytes of one worker."""
        rows = [e for e in read_events(folder) if e["event"] == "evaluate" and e["worker"] == 0]
        share = self.bytes / result["bytes"] * rows[-1]["bytes"]
        before = [row for row in rows if row["bytes"] <= share]
        worst = -math.inf if metric == "accuracy" else math.inf
        return metric_of(before[-1], metric)[1] if before else worst
