"""What a claim is, and when it holds. Nothing here loads torch."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import UserError

SCALES = ("small", "full")


@dataclass(frozen=True)
class Expect:
    """A measured quantity, by its name, and the range in which it must lie for the claim to hold."""

    quantity: str
    low: float = -math.inf
    high: float = math.inf

    def holds(self, measured: dict[str, float]) -> bool:
        """A quantity that was not measured, or is not a number, lies in no range."""
        value = measured.get(self.quantity, math.nan)
        return not math.isnan(value) and self.low <= value <= self.high

    @property
    def range(self) -> str:
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high == math.inf else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Claim:
    """`run` names the experiment, `module:function`; its arguments are `small` or, at full scale, `full` on top of them.

    recipe: how it is measured, in words. remark: what to know about the result. An experiment returns quantities by name:
    those that are expected something of, and others to see beside them.
    """

    name: str
    paper: str
    says: str
    recipe: str
    run: str
    expects: tuple[Expect, ...]
    small: dict[str, Any] = field(default_factory=dict)
    full: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    def arguments(self, scale: str, data_dir: str | None = None) -> dict[str, Any]:
        if scale not in SCALES:
            raise UserError(f"--scale {scale}: takes {' or '.join(SCALES)}")
        chosen = self._chosen(scale)
        if chosen.get("data", "digits") != "digits":
            if data_dir is None:
                raise UserError(f"{self.name} at full scale needs {chosen['data']}: give its folder with --data-dir")
            chosen["data_dir"] = data_dir
        return chosen

    def sizes(self, scale: str) -> str:
        """How large the experiment is at this scale, in words."""
        chosen = self._chosen(scale)
        return ", ".join(f"{name} {_plain(value)}" for name, value in chosen.items() if value is not None)

    def _chosen(self, scale: str) -> dict[str, Any]:
        return self.small | (self.full if scale == "full" else {})

    def experiment(self) -> Callable[..., dict[str, float]]:
        module, _, function = self.run.partition(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), function)


@dataclass(frozen=True)
class Outcome:
    claim: Claim
    measured: dict[str, float]
    seconds: float
    scale: str = "small"

    @property
    def passed(self) -> bool:
        return all(expect.holds(self.measured) for expect in self.claim.expects)

    @property
    def verdict(self) -> str:
        return "pass" if self.passed else "fail"

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Quantity, measured, expected, verdict; what stands beside has no verdict."""
        expected = {expect.quantity: expect for expect in self.claim.expects}
        names = list(expected) + [name for name in self.measured if name not in expected]
        found = []
        for name in names:
            value = f"{self.measured[name]:.4g}" if name in self.measured else "not measured"
            expect = expected.get(name)
            verdict = "" if expect is None else ("pass" if expect.holds(self.measured) else "fail")
            found.append((name, value, "" if expect is None else expect.range, verdict))
        return found


def check(claim: Claim, scale: str = "small", data_dir: str | None = None) -> Outcome:
    """Run the experiment of a claim and judge it."""
    arguments = claim.arguments(scale, data_dir)
    started = time.perf_counter()
    measured = claim.experiment()(**arguments)
    return Outcome(claim, measured, time.perf_counter() - started, scale)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return " and ".join(_plain(one) for one in value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
