"""Claims, expected ranges and outcomes. Does not import torch."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ..core.errors import UserError

SCALES = ("small", "full")


@dataclass(frozen=True)
class Expect:
    """The range in which a measured quantity must lie for the claim to hold."""

    quantity: str
    low: float = -math.inf
    high: float = math.inf

    def holds(self, measured: dict[str, float]) -> bool:
        """False also for a quantity that was not measured or is NaN."""
        value = measured.get(self.quantity, math.nan)
        return not math.isnan(value) and self.low <= value <= self.high

    @property
    def range(self) -> str:
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high == math.inf else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper and the experiment that checks it.

    says: the claim. recipe: how it is measured. remark: a comment on the result.
    run: the experiment as `module:function`. Its arguments are `small`, updated by `full` at full scale. It returns
    measured quantities by name: those with an expected range, and others for comparison.
    variants: the same ranges for other methods than the paper's. They do not decide the verdict; if the claim fails,
    they say what to use instead. hours: of one core at full scale, where we know it to be long.
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
    variants: tuple[Expect, ...] = ()
    hours: float = 0.0

    def arguments(self, scale: str, data_dir: str | None = None) -> dict[str, Any]:
        if scale not in SCALES:
            raise UserError(f"--scale {scale}: takes {' or '.join(SCALES)}")
        arguments = self._arguments(scale)
        if arguments.get("data", "digits") != "digits":
            if data_dir is None:
                raise UserError(f"{self.name} at full scale needs {arguments['data']}: give its folder with --data-dir")
            arguments["data_dir"] = data_dir
        return arguments

    def sizes(self, scale: str) -> str:
        """The size of the experiment at this scale, as text."""
        arguments = self._arguments(scale)
        return ", ".join(f"{name} {_format(value)}" for name, value in arguments.items() if value is not None)

    def _arguments(self, scale: str) -> dict[str, Any]:
        return self.small | (self.full if scale == "full" else {})

    def experiment(self) -> Callable[..., dict[str, float]]:
        module, _, function = self.run.partition(":")
        experiment: Callable[..., dict[str, float]] = getattr(
            importlib.import_module(f"{__package__}.{module}"), function
        )
        return experiment


def _today() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%d}"


@dataclass(frozen=True)
class Outcome:
    """What was measured. seconds: of one core, so that they do not depend on what else the machine did."""

    claim: Claim
    measured: dict[str, float]
    seconds: float
    scale: str = "small"
    date: str = field(default_factory=_today)

    @property
    def passed(self) -> bool:
        return all(expect.holds(self.measured) for expect in self.claim.expects)

    @property
    def verdict(self) -> str:
        return "pass" if self.passed else "fail"

    @property
    def instead(self) -> str:
        """What the variants of a claim that fails do."""
        if self.passed:
            return ""
        holding = [variant.holds(self.measured) for variant in self.claim.variants]
        words = [
            f"{v.quantity}: {self.measured[v.quantity]:.4g} ({v.range}: {'holds' if holds else 'does not hold'})"
            for v, holds in zip(self.claim.variants, holding, strict=True)
        ]
        if not any(holding):
            return f"No variant is known for which it holds{'; ' if words else ''}{'; '.join(words)}."
        return f"Variants: {'; '.join(words)}."

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Quantity, measured, expected, verdict. Quantities without an expected range have no verdict."""
        expected = {expect.quantity: expect for expect in (*self.claim.expects, *self.claim.variants)}
        names = list(expected) + [name for name in self.measured if name not in expected]
        rows = []
        for name in names:
            value = f"{self.measured[name]:.4g}" if name in self.measured else "not measured"
            expect = expected.get(name)
            verdict = "" if expect is None else ("pass" if expect.holds(self.measured) else "fail")
            rows.append((name, value, "" if expect is None else expect.range, verdict))
        return rows


def check(claim: Claim, scale: str = "small", data_dir: str | None = None) -> Outcome:
    """Run the experiment of a claim."""
    arguments = claim.arguments(scale, data_dir)
    started = time.process_time()
    measured = claim.experiment()(**arguments)
    return Outcome(claim, measured, time.process_time() - started, scale)


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return " and ".join(_format(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
