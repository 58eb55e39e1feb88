"""The base of all rules that measure gradient noise: when they test, how an estimate becomes sizes, what they log."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from ..comm.fused_reduction import sum_in_order
from ..comm.piggyback import Piggyback, sum_with_piggyback
from ..core.errors import UserError
from ..core.method import option
from .base import Batch
from .lr_scale import SCALINGS, chosen_scaling, gain
from .noise import NoiseEstimate
from .probe import NoiseProbe, ProbeConfig, WorkerReport
from .probe_examples import ExamplesProbe
from .probe_pseudo import PseudoGradientProbe
from .probe_workers import WorkersProbe

PROBES: dict[str, type[NoiseProbe]] = {
    "workers": WorkersProbe,
    "examples": ExamplesProbe,
    "pseudo": PseudoGradientProbe,
}


@dataclass
class Adaptive(Batch):
    """A rule fills `wanted`. Final here: tests at rounds, agreement, limits, speeds, state.

    Sizes change at rounds only, from numbers that are the same on all workers. A single worker has no other to compare
    with and keeps its size, unless it measures single examples.
    """

    watches: ClassVar[bool] = True
    along: ClassVar[bool] = False  # does it need the variance along the gradient?
    LATE: ClassVar[dict[str, type]] = {"last_estimate": dict}
    STATE: ClassVar[tuple[str, ...]] = (
        "total",
        "rounds",
        "averages",
        "tests",
        "rates",
        "busy_at_test",
        "samples_at_test",
        "last_estimate",
        "probe_state",
    )
    COMMON: ClassVar[tuple[str, ...]] = ("rounds", "averages", "tests", "last_estimate", "size_per_worker")

    start: int = option(16, help="examples per step and worker at first", least=1)
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
        help="of a round's steps: the last, as in the paper, or the first, where all workers have the same parameters",
        choices=("last", "first"),
    )
    examples: int = option(8, help="per worker and test, for estimator = examples; 0: the entire batch", least=0)
    tested: str = option("mean", help="the mean gradient of all workers, or each worker's own", choices=("mean", "own"))
    speeds: list[float] | str | None = option(
        None,
        help='throughputs: sizes are proportional to these, to "measured" ones or to the "blocks"; equal if none',
        above=0,
    )

    scale_lr: str = option(
        "none",
        help="the learning rate with the batch; auto: linear for SGD, sqrt for other optimizers",
        choices=(*SCALINGS, "adascale"),
    )

    def check(self) -> None:
        if isinstance(self.speeds, str) and self.speeds not in ("measured", "blocks"):
            raise UserError(
                f"speeds = {self.speeds!r}: give a list with one number per worker, 'measured', or 'blocks'"
            )
        if self.gradient == "first" and self.estimator != "workers":
            raise UserError("gradient = 'first' is only for estimator = 'workers': leave one of them out")
        if self.most is not None and self.most < self.start:
            raise UserError(f"most = {self.most} is below start = {self.start}: raise it")

    @abstractmethod
    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        """Examples per step of all workers together (infinity: as many as allowed), and numbers for the event."""

    def init_state(self) -> None:
        context, size = self.context, self.context.size
        if isinstance(self.speeds, list) and len(self.speeds) != size:
            raise UserError(f"speeds lists {len(self.speeds)} numbers for {size} workers: give one per worker")
        if self.along and self.tested == "own" and self.estimator != "examples" and size == 2:
            raise UserError(
                "tested='own' compares each worker's gradient with at least two others: use tested='mean', "
                "estimator='examples', or three workers"
            )
        share = -(-context.worker.total_examples // size)
        self.cap = self.most if self.most is not None else max(self.start, share)
        self.total = float(self.start * size)  # examples per step of all workers, before sizes are rounded up
        self.rates = list(self.speeds) if isinstance(self.speeds, list) else [1.0] * size
        self.rounds = self.tests = 0
        # Exponential averages that start at zero; `_smoothed` corrects that bias.
        self.averages = {"variance": 0.0, "square": 0.0, "along": 0.0}
        self.busy_at_test, self.samples_at_test = 0.0, 0
        self.last_estimate: dict[str, float] | None = None
        self._round_follows = False  # does the step in progress end with a round?
        self._unsent = False  # does it end with a test that no message has carried yet?
        self.probe: NoiseProbe | None = None
        if size > 1 or self.estimator == "examples":
            config = ProbeConfig(self.tested == "own", self.along, self.examples, self.gradient == "first")
            self.probe = PROBES[self.estimator](context, config, self.decide)
        self._resize()

    @property
    def spreads(self) -> bool:
        return self.speeds == "blocks"

    @property
    def size_per_worker(self) -> float:
        """Examples per step, on average: what is kept when the number of workers changes."""
        return self.total / self.context.size

    @size_per_worker.setter
    def size_per_worker(self, value: float) -> None:
        self.total = value * self.context.size
        self._resize()

    @property
    def probe_state(self) -> dict[str, Any]:
        return {} if self.probe is None else self.probe.state()

    @probe_state.setter
    def probe_state(self, state: dict[str, Any]) -> None:
        if self.probe is not None:
            self.probe.load(state)
        self._resize()  # the last entry of STATE: total and rates are loaded

    def noise(self) -> NoiseEstimate | None:
        return None if self.last_estimate is None else NoiseEstimate(**self.last_estimate)  # type: ignore[arg-type]

    def lr_gain(self, largest: float) -> float:
        first = self.start * self.context.size
        return gain(chosen_scaling(self.scale_lr, self.context.optimizer), self._in_force / first, first, self.noise())

    # -- the step -------------------------------------------------------------------------------------------------
    def sizes(self) -> list[int]:
        return self._sizes

    def follow_blocks(self) -> None:
        self._resize()

    def observe(self, due: bool) -> Piggyback | None:
        probe = self.probe
        if probe is None:
            return None
        testing = (self.rounds + 1) % self.every == 0 and not self._final
        probe.after_backward(testing)
        if not due:
            return None
        self.rounds += 1
        self._round_follows, self._unsent = True, testing
        if not testing:
            return None
        clock = self.context.clock
        consumed = clock.samples + clock.batch
        probe.busy, probe.samples = clock.busy - self.busy_at_test, float(consumed - self.samples_at_test)
        self.busy_at_test, self.samples_at_test = clock.busy, consumed
        probe.measure()
        return probe

    def settle(self) -> None:
        if not self._round_follows:
            return
        assert self.probe is not None
        self._round_follows = False
        if self._unsent:
            assert self.context.flat is not None
            sum_with_piggyback(self.context.comm, self.context.flat.x.new_empty(0), 1.0, "", self.probe)
        self.probe.after_round()

    @property
    def _final(self) -> bool:
        """Can no test change a size any more?"""
        return not self.shrink and self.speeds != "measured" and self.total >= self._largest

    @property
    def _largest(self) -> float:
        """The total at the cap. Sizes stop growing together, when the largest is there."""
        return self.cap * sum_in_order(self.rates) / max(self.rates)

    @property
    def _in_force(self) -> float:
        """The total that sizes are made of."""
        return min(self.total, self._largest)

    # -- the decision, from numbers that are the same on all workers -------------------------------------------------
    def decide(self, estimate: NoiseEstimate | None, reports: list[WorkerReport]) -> None:
        self._unsent = False
        old, numbers = self._sizes, dict[str, float]()
        reason = "too few workers had examples" if estimate is None else ""
        if estimate is not None and not estimate.finite:
            estimate, reason = None, "a gradient was not finite"
        if self.speeds == "measured":
            self._update_rates(reports)
        if estimate is not None:
            estimate = self._smoothed(estimate._replace(loss=_loss(reports)))
            self.last_estimate = estimate._asdict()
            wanted, numbers = self.wanted(estimate)
            numbers = numbers | {
                "wanted": wanted,
                "variance": estimate.variance,
                "square": estimate.square,
                "norm": estimate.norm,
            }
            numbers["noise_scale"] = estimate.variance / estimate.square if estimate.square > 0 else math.inf
            self.total = self.limited(wanted)
        self._resize()
        if self.context.rank == 0:
            sizes = {"old": old, "new": self._sizes, "estimator": self.estimator}
            unchanged = {"reason": reason} if reason else {}
            self.context.emit("batch", consumed=self.context.clock.consumed, **sizes, **numbers, **unchanged)

    def limited(self, wanted: float) -> float:
        """`wanted`, within the limits of one test and of a worker."""
        size = self.context.size
        if math.isnan(wanted):
            return self.total
        total = min(wanted, self.total * self.growth)
        total = max(total, self._in_force / self.growth if self.shrink else self.total)
        return min(max(total, float(self.start * size)), float(self.cap * size))

    def _resize(self) -> None:
        if self.speeds == "blocks" and self.context.worker.shares:  # which may be redistributed
            self.rates = list(self.context.worker.shares)
        total, total_rate = self._in_force, sum_in_order(self.rates)
        # The small number absorbs rounding errors: half of 32 must be 16, not 17.
        sizes = [math.ceil(total * rate / total_rate - 1e-9 * total) for rate in self.rates]
        self._sizes = [max(1, min(size, self.cap)) for size in sizes]

    def _smoothed(self, estimate: NoiseEstimate) -> NoiseEstimate:
        keep = self.smoothing
        self.tests += 1
        new = {name: getattr(estimate, name) for name in self.averages}
        self.averages = {name: keep * old + (1 - keep) * new[name] for name, old in self.averages.items()}
        if not keep:
            return estimate
        unbiased = {name: value / (1 - keep**self.tests) for name, value in self.averages.items()}
        return estimate._replace(variance=unbiased["variance"], square=unbiased["square"], along=unbiased["along"])

    def _update_rates(self, reports: list[WorkerReport]) -> None:
        """Examples per second of computing: the mean of this test and the rates before."""
        rates = [r.samples / r.busy if r.busy > 0 and r.samples > 0 else 0.0 for r in reports]
        if min(rates) > 0 and all(map(math.isfinite, rates)):
            first = set(self.rates) == {1.0}
            self.rates = rates if first else [(a + b) / 2 for a, b in zip(self.rates, rates, strict=True)]


def _loss(reports: list[WorkerReport]) -> float:
    present = [r for r in reports if r.batch > 0]
    if not present:
        return math.nan
    return sum_in_order([r.batch * r.loss for r in present]) / sum_in_order([r.batch for r in present])


def ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator: inf where the denominator is hidden in noise, nan where both are zero."""
    if denominator > 0:
        return numerator / denominator
    return math.inf if numerator > 0 else math.nan
