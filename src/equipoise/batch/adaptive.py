"""What all rules that measure have in common: when they look, how a wish becomes sizes, and what is told of it."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from ..comm.fused_reduction import add
from ..comm.piggyback import sum_carrying
from ..core.errors import UserError
from ..core.method import option
from .base import Batch
from .noise import Evidence
from .probe import Probe, Wish
from .probe_examples import Examples
from .probe_pseudo import Pseudo
from .probe_workers import Workers

PROBES: dict[str, type[Probe]] = {"workers": Workers, "examples": Examples, "pseudo": Pseudo}


@dataclass
class _Begins(Batch):
    """`start` is an option of the rules below, so that their hook has another name."""

    def start(self) -> None:
        self.begin()

    @abstractmethod
    def begin(self) -> None: ...


@dataclass
class Adaptive(_Begins):
    """A rule fills `wanted`. Final here: looking at rounds, agreeing, limits, speeds, state.

    Sizes change at rounds only, by numbers that all workers have received alike. One worker has nobody to compare with
    and keeps its size, unless single examples are looked at.
    """

    watches: ClassVar[bool] = True
    along: ClassVar[bool] = False  # does it ask for the variance along the gradient?
    STATE: ClassVar[tuple[str, ...]] = ("total", "rounds", "averages", "tests", "rates", "mark", "seen", "eyes")

    start: int = option(16, help="examples per step and worker at first", least=1)  # type: ignore[assignment]
    most: int | None = option(
        None, help="most examples per step and worker; a worker's share of the data if none", least=1
    )
    growth: float = option(2.0, help="most that a test may multiply (or divide) the size by; inf for no limit", above=1)
    shrink: bool = option(False, help="let sizes fall again, not below the start")
    smoothing: float = option(0.0, help="weight of earlier tests in the measured noise", least=0, below=1)
    every: int = option(1, help="rounds between tests", least=1)
    estimator: str = option(
        "workers", help="noise across workers, across examples, or of local steps", choices=tuple(PROBES)
    )
    gradient: str = option(
        "last",
        help="of a round's steps: the last, as in the paper, or the first, where workers are at one point",
        choices=("last", "first"),
    )
    examples: int = option(8, help="per worker and test, for estimator = examples; 0: the whole batch", least=0)
    tested: str = option("mean", help="the mean gradient of all workers, or each worker's own", choices=("mean", "own"))
    speeds: list[float] | str | None = option(
        None, help='sizes in proportion to these, or "measured"; all alike if none', above=0
    )

    def check(self) -> None:
        if isinstance(self.speeds, str) and self.speeds != "measured":
            raise UserError(f"speeds = {self.speeds!r}: a list with one number per worker, or 'measured'")
        if self.gradient == "first" and self.estimator != "workers":
            raise UserError("gradient = 'first' is a choice of estimator = 'workers': leave one of them out")
        if self.most is not None and self.most < self.start:
            raise UserError(f"most = {self.most} is below start = {self.start}: raise it")

    @abstractmethod
    def wanted(self, evidence: Evidence) -> tuple[float, dict[str, float]]:
        """Examples per step that all workers together should take (infinity: all there may be), and numbers to tell."""

    def begin(self) -> None:
        context = self.context
        if isinstance(self.speeds, list) and len(self.speeds) != context.size:
            raise UserError(f"speeds lists {len(self.speeds)} numbers for {context.size} workers: give one per worker")
        self.cap = self.most if self.most is not None else max(self.start, -(-context.whole // context.size))
        self.total = float(self.start * context.size)  # examples per step, before they are rounded up
        self.rates = list(self.speeds) if isinstance(self.speeds, list) else [1.0] * context.size
        self.rounds = self.tests = 0
        # Of variance, |G|^2 and variance along the gradient, not yet rid of their start at zero.
        self.averages = [0.0, 0.0, 0.0]
        self.mark = [0.0, 0]  # seconds of computing and samples at the last test
        self.seen: list[float] | None = None  # the evidence of the last test
        self._passing = False  # does the step under way end with a round?
        self.probe: Probe | None = None
        if context.size > 1 or self.estimator == "examples":
            wish = Wish(self.tested == "own", self.along, self.examples, self.gradient == "first")
            self.probe = context.rider = PROBES[self.estimator](context, wish, self.decide)
        self._resize()

    @property
    def eyes(self) -> Any:
        return None if self.probe is None else self.probe.state()

    @eyes.setter
    def eyes(self, state: Any) -> None:
        if self.probe is not None:
            self.probe.load(state)
        self._resize()  # the last of STATE: total and rates are in place

    @property
    def evidence(self) -> Evidence | None:  # type: ignore[override]
        return None if self.seen is None else Evidence(*self.seen)  # type: ignore[arg-type]

    # -- the step -------------------------------------------------------------------------------------------------
    def sizes(self) -> list[int]:
        return self._sizes

    def observe(self, due: bool) -> None:
        probe = self.probe
        if probe is None:
            return
        testing = (self.rounds + 1) % self.every == 0 and not self._final
        probe.stepped(testing)
        if not due:
            return
        self.rounds += 1
        if testing:
            clock = self.context.clock
            done = clock.samples + clock.batch
            probe.pace = (clock.busy - self.mark[0], float(done - self.mark[1]))
            self.mark = [clock.busy, done]
            probe.measure()
            probe.aboard = True
        self._passing = True

    def settle(self) -> None:
        if not self._passing:
            return
        assert self.probe is not None
        self._passing = False
        if self.probe.aboard:
            assert self.context.flat is not None
            sum_carrying(self.context, self.context.flat.x.new_empty(0), 1.0, "")
        self.probe.passed()

    @property
    def _final(self) -> bool:
        """Can no test change anything any more?"""
        return not self.shrink and self.speeds != "measured" and self.total >= self.cap * self.context.size

    # -- the decision, from numbers that are the same on all workers -----------------------------------------------------
    def decide(self, evidence: Evidence | None, notes: list[list[float]]) -> None:
        old, told = self._sizes, {}
        reason = "fewer than two workers had examples" if evidence is None else ""
        if evidence is not None and not evidence.finite:
            evidence, reason = None, "a gradient was not finite"
        if self.speeds == "measured":
            self._pace(notes)
        if evidence is not None:
            evidence = self._smoothed(evidence._replace(loss=_loss(notes)))
            self.seen = list(evidence)
            wanted, numbers = self.wanted(evidence)
            told = numbers | {
                "wanted": wanted,
                "variance": evidence.variance,
                "square": evidence.square,
                "norm": evidence.norm,
            }
            told["noise_scale"] = evidence.variance / evidence.square if evidence.square > 0 else math.inf
            self.total = self.limited(wanted)
        self._resize()
        if self.context.rank == 0:
            about = {"consumed": self.context.consumed, "old": old, "new": self._sizes, "estimator": self.estimator}
            self.context.emit("batch", **about, **told, **({"reason": reason} if reason else {}))

    def limited(self, wanted: float) -> float:
        """What is wanted, within what one test may change and what a worker may hold."""
        size = self.context.size
        if math.isnan(wanted):
            return self.total
        total = min(wanted, self.total * self.growth)
        total = max(total, self.total / self.growth if self.shrink else self.total)
        return min(max(total, float(self.start * size)), float(self.cap * size))

    def _resize(self) -> None:
        whole = add(self.rates)
        # The small number forgives rounding: half of 32 is 16.
        parts = [math.ceil(self.total * rate / whole - 1e-9 * self.total) for rate in self.rates]
        self._sizes = [max(1, min(part, self.cap)) for part in parts]

    def _smoothed(self, evidence: Evidence) -> Evidence:
        keep = self.smoothing
        self.tests += 1
        new = (evidence.variance, evidence.square, evidence.along)
        self.averages = [keep * a + (1 - keep) * n for a, n in zip(self.averages, new, strict=True)]
        variance, square, along = (a / (1 - keep**self.tests) for a in self.averages)
        return evidence._replace(variance=variance, square=square, along=along) if keep else evidence

    def _pace(self, notes: list[list[float]]) -> None:
        """Examples per second of computing, half from this test and half from before."""
        found = [note[3] / note[2] if note[2] > 0 and note[3] > 0 else 0.0 for note in notes]
        if min(found) > 0 and all(map(math.isfinite, found)):
            self.rates = (
                found if set(self.rates) == {1.0} else [(a + b) / 2 for a, b in zip(self.rates, found, strict=True)]
            )


del Adaptive.start  # the option is an instance's; what a class has by this name is the hook


def _loss(notes: list[list[float]]) -> float:
    present = [note for note in notes if note[0] > 0]
    return add([note[0] * note[1] for note in present]) / add([note[0] for note in present]) if present else math.nan


def ratio(above: float, below: float) -> float:
    """above / below: infinite where the divisor is hidden in noise, not a number where nothing moved at all."""
    if below > 0:
        return above / below
    return math.inf if above > 0 else math.nan
