"""From an estimate to sizes: every rule's formula, the limits, and what happens at the edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.batch.noise import NoiseEstimate
from equipoise.batch.probe import WorkerReport
from equipoise.comm.base import Comm
from equipoise.core.clock import Clock
from equipoise.core.context import Context, WorkerInfo
from equipoise.core.errors import UserError

from .test_noise import DEVIATIONS, MEAN, drawn, measured


class FakeComm:
    """As much of a comm as a rule needs that is given its estimates by hand."""

    def __init__(self, size: int):
        self.rank, self.size = 0, size


def bound(rule: eq.batch.Batch, workers: int = 4) -> Any:
    events: list[dict[str, Any]] = []
    comm: Comm = FakeComm(workers)  # type: ignore[assignment]
    worker = WorkerInfo(comm.rank, workers, examples=10**6 // workers, total_examples=10**6)
    emit = lambda event, **fields: events.append({"event": event, **fields})  # noqa: E731
    context = Context(comm, Clock(lr=0.1), worker, emit=emit)
    bound_rule = rule.bind(context)
    bound_rule.events = events
    return bound_rule


def report(batch: float, loss: float = 1.0, seconds: float = 0.0, examples: float = 0.0) -> WorkerReport:
    return WorkerReport(batch, loss, busy=seconds, samples=examples)


def estimated(variance: float, square: float, total: float = 1e12) -> NoiseEstimate:
    return NoiseEstimate(variance, square, 1 / total, 1)


def feed(rule: Any, estimate: NoiseEstimate | None, reports: list[WorkerReport] | None = None) -> list[int]:
    rule.decide(estimate, reports or [report(size) for size in rule.sizes()])
    return rule.sizes()


# -- the formulas -----------------------------------------------------------------------------------------------------
def test_norm_test_is_the_formula_of_the_paper() -> None:
    rule = bound(eq.batch.NormTest(start=8, most=10**6, eta=0.6, growth=math.inf))
    vectors = drawn(np.random.default_rng(0), [8] * 4)
    mean = vectors.mean(0)
    variance = 8 / 3 * ((vectors - mean) ** 2).sum()
    assert feed(rule, measured(vectors, [8] * 4)) == [math.ceil(variance / (4 * 0.36 * mean @ mean))] * 4
    event = rule.events[-1]
    assert event["old"] == [8] * 4
    assert event["new"] == rule.sizes()
    assert event["test"] == pytest.approx(variance / 32 / (0.36 * mean @ mean))
    for key, value in {"variance": variance, "norm": mean @ mean, "square": mean @ mean - variance / 32}.items():
        assert event[key] == pytest.approx(value)
    assert event["noise_scale"] == pytest.approx(variance / event["square"])


def test_a_test_that_passes_changes_nothing_and_says_so() -> None:
    rule = bound(eq.batch.NormTest(start=16, most=512, eta=0.8))
    assert feed(rule, estimated(variance=0.1, square=5.0)) == [16] * 4
    assert rule.events[-1]["test"] < 1
    assert rule.events[-1]["old"] == rule.events[-1]["new"]


def test_debiasing_takes_the_noise_out_of_the_norm() -> None:
    estimate = estimated(variance=64.0, square=1.0, total=64)
    plain = bound(eq.batch.NormTest(start=16, eta=0.5, growth=math.inf))
    debiased = bound(eq.batch.NormTest(start=16, eta=0.5, growth=math.inf, debias=True))
    assert feed(plain, estimate) == [math.ceil(64 / (0.25 * 2.0) / 4)] * 4
    assert feed(debiased, estimate) == [math.ceil(64 / (0.25 * 1.0) / 4)] * 4


def test_own_gradients_need_as_much_on_each_worker() -> None:
    estimate = NoiseEstimate(variance=64.0, square=1.0, noise=1 / 16, parts=4)
    rule = bound(eq.batch.NormTest(start=16, eta=1.0, tested="own", debias=True, growth=math.inf))
    assert feed(rule, estimate) == [64] * 4


def test_inner_product_and_augmented_against_single_examples() -> None:
    """Variances over single examples, by the definition: 8 workers with one example each are 8 examples."""
    rng = np.random.default_rng(1)
    rows = MEAN + rng.standard_normal((8, len(MEAN))) * DEVIATIONS
    v = rows.mean(0)
    along = np.var(rows @ v, ddof=1)
    direction = v / np.linalg.norm(v)
    rest = rows - np.outer(rows @ direction, direction)
    across = ((rest - rest.mean(0)) ** 2).sum() / 7
    estimate = measured(rows, [1] * 8, along=True)
    assert estimate.along == pytest.approx(along)
    rule = bound(eq.batch.InnerProduct(start=1, theta=0.1, growth=math.inf), workers=8)
    assert feed(rule, estimate) == [math.ceil(along / (0.01 * (v @ v) ** 2) / 8)] * 8
    for theta, nu in ((0.05, 5.0), (5.0, 0.05)):
        rule = bound(eq.batch.Augmented(start=1, theta=theta, nu=nu, growth=math.inf), workers=8)
        need = max(along / (theta**2 * (v @ v) ** 2), across / (nu**2 * (v @ v)))
        assert feed(rule, estimate) == [math.ceil(need / 8)] * 8
    assert rule.events[-1]["across"] == pytest.approx(across)


def test_noise_scale_averages_both_parts_by_themselves() -> None:
    rule = bound(eq.batch.NoiseScale(start=1, scale=2.0, smoothing=0.5, growth=math.inf))
    assert feed(rule, estimated(variance=100.0, square=1.0)) == [50] * 4  # 2 * 100 / 1, over 4 workers
    # (0.5 * 100 + 300) / 1.5 = 233.3 and (0.5 * 1 + 3) / 1.5 = 2.33, though the ratio of the second alone is 100 too
    feed(rule, estimated(variance=300.0, square=3.0))
    assert rule.events[-1]["variance"] == pytest.approx(700 / 3)
    assert rule.events[-1]["square"] == pytest.approx(7 / 3)
    assert feed(bound(eq.batch.NoiseScale(start=1, smoothing=0.0, growth=math.inf)), estimated(200.0, 1.0)) == [50] * 4


def test_noise_scale_follows_the_mean_of_its_estimates_not_the_largest() -> None:
    """A constant true scale of 256: sizes stay around it in both directions."""
    rng = np.random.default_rng(6)
    dim, workers, scale, totals = 64, 4, 256, []
    mean = np.full(dim, math.sqrt(1.0 / scale))  # tr S = dim
    for _ in range(20):
        rule = bound(eq.batch.NoiseScale(start=16), workers)
        for _ in range(60):
            b = rule.sizes()[0]
            feed(rule, measured(mean + rng.standard_normal((workers, dim)) / math.sqrt(b), [b] * workers))
        totals.append(sum(rule.sizes()))
    assert np.median(totals) == pytest.approx(scale, rel=0.2)
    assert np.quantile(totals, 0.9) < 1.5 * scale


def test_cabs_follows_learning_rate_and_loss() -> None:
    rule = bound(eq.batch.CABS(start=2, growth=math.inf))
    assert feed(rule, estimated(800.0, 1.0), [report(8, loss=2.0)] * 4) == [math.ceil(0.1 * 800 / 2 / 4)] * 4
    rule.context.clock.lr = 0.05
    assert feed(rule, estimated(800.0, 1.0), [report(8, loss=2.0)] * 4) == [5] * 4, "it shrinks with the learning rate"
    loss = [report(8, loss=1.0), report(24, loss=3.0), report(0, loss=math.nan), report(0, loss=math.nan)]
    feed(rule, estimated(800.0, 1.0), loss)
    assert rule.events[-1]["loss"] == pytest.approx(2.5), "weighted by examples, workers without any left out"


def test_schedule_counts_its_unit() -> None:
    rule = bound(eq.batch.Schedule(plan=[4, 8, 16], at=[100, 300], unit="samples"))
    sizes = []
    for rule.context.clock.consumed in (0, 99, 100, 299, 300, 10**6):
        sizes.append(rule.sizes()[0])
    assert sizes == [4, 4, 8, 8, 16, 16]
    rule = bound(eq.batch.Schedule(plan=[4, 8], at=[0.5]))
    assert (rule.sizes(), setattr(rule.context.clock, "consumed", 500_000), rule.sizes()) == ([4] * 4, None, [8] * 4)
    rule = bound(eq.batch.Schedule(plan=[4, 8], at=[2], unit="steps"))
    assert (rule.sizes(), setattr(rule.context.clock, "step", 2), rule.sizes()) == ([4] * 4, None, [8] * 4)
    for nonsense in ({"plan": [4, 8], "at": []}, {"plan": [4, 8, 16], "at": [3.0, 2.0]}):
        with pytest.raises(UserError, match="one point"):
            eq.batch.Schedule(**nonsense)  # type: ignore[arg-type]


# -- laws -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("eta", [0.5, 0.7])
def test_pure_noise_grows_by_one_over_eta_squared(eta: float) -> None:
    rng = np.random.default_rng(2)
    growth = []
    for _ in range(400):
        rule = bound(eq.batch.NormTest(start=200, eta=eta, growth=math.inf))
        growth.append(feed(rule, measured(noise(rng, 200), [200] * 4))[0] / 200)
    assert np.median(growth) == pytest.approx(1 / eta**2, rel=0.03)
    assert np.std(growth) < 0.5 / eta**2


def noise(rng: np.random.Generator, size: int, workers: int = 4, dim: int = 400) -> np.ndarray:
    return rng.standard_normal((workers, dim)) / math.sqrt(size)


def test_pure_noise_at_eta_one_is_a_coin_and_above_it_nothing() -> None:
    rng = np.random.default_rng(3)
    grown = {1.0: 0, 1.4: 0}
    for eta in grown:
        for _ in range(400):
            rule = bound(eq.batch.NormTest(start=500, eta=eta, growth=math.inf))
            grown[eta] += feed(rule, measured(noise(rng, 500), [500] * 4))[0] > 500
    assert 0.42 * 400 < grown[1.0] < 0.58 * 400
    assert grown[1.4] == 0


@pytest.mark.parametrize("debias", [False, True])
def test_the_fixed_point_with_signal(debias: bool) -> None:
    """b = tr S (1 - eta^2) / (M eta^2 |G|^2) with the measured norm, tr S / (M eta^2 |G|^2) with the debiased one."""
    rng = np.random.default_rng(4)
    eta, dim, workers = 0.6, 2000, 4
    mean = np.full(dim, 0.05)
    rule = bound(eq.batch.NormTest(start=1, eta=eta, debias=debias, growth=1.5, shrink=True, smoothing=0.8))
    sizes = []
    for _ in range(150):
        b = rule.sizes()[0]
        vectors = mean + rng.standard_normal((workers, dim)) / math.sqrt(b)
        sizes.append(feed(rule, measured(vectors, [b] * workers))[0])
    exact = dim / (workers * eta**2 * float(mean @ mean))
    expected = exact if debias else exact * (1 - eta**2)
    assert np.mean(sizes[50:]) == pytest.approx(expected, rel=0.05)


# -- limits -----------------------------------------------------------------------------------------------------------
def test_monotone_capped_and_whole() -> None:
    rng = np.random.default_rng(5)
    rule = bound(eq.batch.NormTest(start=3, most=50, eta=0.9))
    before = rule.sizes()
    for _ in range(60):
        b = rule.sizes()[0]
        after = feed(rule, measured(drawn(rng, [b] * 4, MEAN * rng.uniform(0, 2)), [b] * 4))
        assert all(isinstance(n, int) for n in after)
        assert all(old <= new <= min(50, 2 * old) for old, new in zip(before, after, strict=True))
        before = after
    assert before == [50] * 4


def test_growth_is_held_back_and_both_ways_if_asked() -> None:
    much, little = estimated(10**6, 1.0), estimated(1e-6, 1.0)
    rule = bound(eq.batch.NormTest(start=16, most=100, growth=1.5, shrink=True))
    sizes = [feed(rule, much)[0] for _ in range(6)]
    assert sizes == [24, 36, 54, 81, 100, 100]
    assert [feed(rule, little)[0] for _ in range(6)] == [67, 45, 30, 20, 16, 16]
    rule = bound(eq.batch.NormTest(start=16, most=100))
    feed(rule, much)
    assert feed(rule, little) == [32] * 4, "monotone unless asked"


def test_without_a_cap_the_data_is_one() -> None:
    rule = bound(eq.batch.NormTest(start=16, growth=math.inf))
    assert feed(rule, estimated(1.0, -1.0)) == [250_000] * 4


def test_no_gradient_a_zero_gradient_and_one_that_is_not_finite() -> None:
    rule = bound(eq.batch.NormTest(start=16, most=64, shrink=True))
    feed(rule, estimated(10**6, 1.0))
    assert feed(rule, estimated(0.0, 0.0)) == [32] * 4, "nothing moved: nothing is known"
    assert feed(rule, None) == [32] * 4
    assert rule.events[-1]["reason"] == "too few workers had examples"
    for bad in (estimated(math.nan, math.nan), estimated(math.inf, 1.0), estimated(1.0, -math.inf)):
        assert feed(rule, bad) == [32] * 4
        assert "not finite" in rule.events[-1]["reason"]
    zero = measured(np.array([[1.0, 0.0], [-1.0, 0.0]]), [16, 16])
    assert zero.norm == pytest.approx(0.0)
    assert feed(rule, zero) == [64] * 4, "noise around zero asks for all there is"


def test_eta_without_bound_never_grows() -> None:
    rule = bound(eq.batch.NormTest(start=16, eta=math.inf))
    assert feed(rule, estimated(10**9, 1e-9)) == [16] * 4


def test_smoothing_forgets_its_start() -> None:
    rule = bound(eq.batch.NormTest(start=16, smoothing=0.9, growth=math.inf))
    for _ in range(3):
        feed(rule, estimated(variance=128.0, square=1.0))
        assert rule.events[-1]["variance"] == pytest.approx(128.0)
    feed(rule, estimated(variance=0.0, square=1.0))
    assert 80 < rule.events[-1]["variance"] < 128


# -- unequal workers --------------------------------------------------------------------------------------------------
def test_sizes_follow_speeds_and_do_not_creep() -> None:
    rule = bound(eq.batch.NormTest(start=10, most=100, speeds=[1, 1, 2, 3.9], growth=math.inf))
    first = rule.sizes()
    assert first == [6, 6, 11, 20]
    for _ in range(5):
        assert feed(rule, estimated(1e-9, 1.0)) == first, "rounding up must not add up"
    grown = feed(rule, estimated(0.64 * 158, 1.0))
    assert grown == [20, 20, 40, 78]
    assert feed(rule, estimated(1e9, 1.0)) == [26, 26, 52, 100], "at the cap of the fastest all stop growing"
    with pytest.raises(UserError, match="one per worker"):
        bound(eq.batch.NormTest(speeds=[1, 2]))
    with pytest.raises(UserError, match="measured"):
        eq.batch.NormTest(speeds="guessed")


def test_measured_speeds() -> None:
    rule = bound(eq.batch.NormTest(start=12, speeds="measured"))
    assert rule.sizes() == [12] * 4
    reports = [report(12, seconds=s, examples=120) for s in (1.0, 1.0, 2.0, 2.0)]
    assert feed(rule, estimated(1e-9, 1.0), reports) == [16, 16, 8, 8]
    reports = [report(12, seconds=1.0, examples=120)] * 4
    assert feed(rule, estimated(1e-9, 1.0), reports) == [14, 14, 11, 11], "half the new, half the old"
    unknown = [report(12, seconds=0.0, examples=120)] * 4
    assert feed(rule, estimated(1e-9, 1.0), unknown) == [14, 14, 11, 11]


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="raise it"):
        eq.batch.NormTest(start=64, most=32)
    for nonsense in ({"eta": 0}, {"growth": 1.0}, {"smoothing": 1.0}, {"estimator": "guess"}, {"start": 0}):
        with pytest.raises(UserError):
            eq.batch.NormTest(**nonsense)  # type: ignore[arg-type]


def test_what_it_has_measured_survives_a_checkpoint() -> None:
    rule = bound(eq.batch.NormTest(start=16, smoothing=0.5, shrink=True))
    for variance in (300.0, 200.0):
        feed(rule, estimated(variance, 1.0))
    other = bound(eq.batch.NormTest(start=16, smoothing=0.5, shrink=True))
    other.load_state_dict(rule.state_dict())
    assert other.sizes() == rule.sizes() != [16] * 4
    assert other.noise() == rule.noise() is not None
    assert feed(other, estimated(100.0, 1.0)) == feed(rule, estimated(100.0, 1.0))
    assert other.events[-1] == rule.events[-1]
