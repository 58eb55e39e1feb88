"""Weights, centre and pull: the mathematics that MGRAWA and LGRAWA share, on virtual workers and on processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.core.vector import Flat, ModelSize
from equipoise.sync import LGRAWA, MGRAWA, NoSync, PeriodicAverage
from equipoise.sync.gradient_norms import GradientNorms
from equipoise.sync.gradient_weighted import from_logs, log_weights
from equipoise.sync.proximal import proximal_step

from .checks import Layers, toy_sha

SIZES = (3, 4, 1)  # elements of three layers


# -- one round by hand ------------------------------------------------------------------------------------------------


@dataclass
class RoundResult:
    x: np.ndarray  # (workers, elements) after the round
    centre: np.ndarray  # (workers, elements): each worker's copy
    own: np.ndarray  # (workers, weights): shares of the centre
    ledger: list[dict[str, int]]


def run_rounds(
    sync: Any,
    models: np.ndarray,
    norms: np.ndarray,
    *,
    sizes: tuple[int, ...] = SIZES,
    virtual: bool = True,
    dtype: torch.dtype = torch.float64,
    batches: list[int] | None = None,
    rounds: int = 1,
    each: Callable[[Any, int], None] | None = None,
) -> RoundResult:
    """Rounds on workers at `models` (workers, elements) whose gradients have `norms` (workers, layers)."""

    def loop(comm: Comm) -> tuple[Any, ...]:
        model = Layers(sizes, dtype)
        flat = Flat(model)
        context = Context(comm, flat=flat)
        bound = sync.bind(context)
        context.clock.batch = 1 if batches is None else batches[comm.rank]
        for number in range(rounds):
            with torch.no_grad():
                flat.x.copy_(torch.from_numpy(models[comm.rank]))
            for p, norm in zip(model.parameters(), norms[comm.rank], strict=True):
                p.grad = torch.full_like(p, norm / p.numel() ** 0.5)
            bound.before_step(flat.gather(), None)
            bound.after_step(flat.gather())
            if each is not None:
                each(bound, number)
        return (
            flat.x.double().numpy(),
            bound.centre().double().numpy(),
            bound.own_weights.numpy(),
            comm.ledger.state_dict(),
        )

    rows = eq.spawn(loop, len(models), virtual=virtual)
    x, centre, own = (np.stack([row[i] for row in rows]) for i in range(3))
    return RoundResult(x, centre, own, [row[3] for row in rows])


def drawn(workers: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((workers, sum(SIZES))), rng.uniform(0.1, 5.0, (workers, len(SIZES)))


def by_element(weights: np.ndarray) -> np.ndarray:
    """A weight per layer as one per element."""
    return np.repeat(weights, SIZES, axis=1)


# -- the weights ------------------------------------------------------------------------------------------------------
norm_lists = st.lists(st.floats(1e-4, 1e6), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(norm_lists, st.floats(1e-3, 1e3))
def test_weights_are_shares_and_know_no_scale(norms: list[float], scale: float) -> None:
    n = np.array(norms)
    share = shares(n)
    assert (share > 0).all()
    assert share.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(shares(scale * n), share, rtol=1e-9)
    np.testing.assert_allclose(shares(n[::-1]), share[::-1], rtol=1e-12)
    # b n is the same for all: the harmonic sum, which is the least value of sum b^2 n on the simplex.
    theta = 1.0 / (1.0 / n).sum()
    np.testing.assert_allclose(share * n, theta, rtol=1e-9)
    assert (share**2 * n).sum() == pytest.approx(theta)
    assert (share * n).sum() <= n.mean() * (1 + 1e-9)
    for other in np.random.default_rng(0).dirichlet(np.ones(len(n)), 5):
        assert (other**2 * n).sum() >= theta * (1 - 1e-9)


def shares(norms: np.ndarray, exponent: float = 1.0) -> np.ndarray:
    weights = from_logs(log_weights(torch.from_numpy(norms.copy()), exponent, 1e-8)).numpy()
    return weights / weights.sum()


def test_exponent_goes_from_the_average_to_the_leader() -> None:
    norms = np.array([1.0, 2.0, 4.0])
    np.testing.assert_array_equal(shares(norms, 0.0), np.full(3, 1 / 3))
    np.testing.assert_allclose(shares(norms, 1.0), np.array([4, 2, 1]) / 7)
    np.testing.assert_allclose(shares(norms, 2.0), np.array([16, 4, 1]) / 21)
    assert shares(norms, 16.0)[0] > 0.9999


def test_weights_fit_float32_whatever_the_norms() -> None:
    weights = from_logs(log_weights(torch.tensor([0.0, 1e-300, 1e300, 1.0]), 16.0, 1e-8)).float()
    assert weights.isfinite().all()
    assert (weights > 0).all()


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e5])
@pytest.mark.parametrize("cls", [MGRAWA, LGRAWA])
def test_ratios_of_weights_do_not_depend_on_the_scale_of_norms(cls: Any, scale: float) -> None:
    """Also with large exponents, whose weights leave the range of float32; a worker without a norm has none."""
    models, _ = drawn(3)
    norms = scale * np.array([[0.02], [0.01], [0.005]]) * np.ones(len(SIZES))
    sync = cls(exponent=16.0, epsilon=1e-12)
    result = run_rounds(sync, models, norms, dtype=torch.float32, batches=[1, 1, 0])
    share = 1 / (1 + 2.0**-16)
    np.testing.assert_allclose(result.own[:, 0], [1 - share, share, 0.0], rtol=1e-5)
    np.testing.assert_allclose(result.centre[0], share * models[1] + (1 - share) * models[0], atol=1e-5)
    cost = [sync.cost(ModelSize(sum(SIZES), 4, len(SIZES)), rank, 3, True) for rank in range(3)]
    assert [(row["messages"], row["bytes"]) for row in result.ledger] == cost


def test_norms_below_epsilon_count_as_it() -> None:
    weights = from_logs(log_weights(torch.tensor([0.0, 1e-5, 1e-3, 1e-2]), 1.0, 1e-3))
    np.testing.assert_allclose(weights, [1e3, 1e3, 1e3, 1e2], rtol=1e-5)


# -- the centre and the pull ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["virtual", "processes", "shared memory", "chunks"])
@pytest.mark.parametrize("workers", [2, 5])
def test_one_collective_gives_the_weighted_mean_of_every_layer(
    workers: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = how == "virtual"
    if how in ("shared memory", "chunks"):
        monkeypatch.setattr("equipoise.comm.shared_memory.LEAST", 0)
        monkeypatch.setattr("equipoise.comm.shared_memory._LINE", 1)
    if how == "chunks":  # that end inside of layers, and inside of the weights
        monkeypatch.setattr("equipoise.comm.shared_memory._PIECE", len(SIZES) - 1)
    models, norms = drawn(workers)
    inverse = 1.0 / norms
    result = run_rounds(LGRAWA(pull=0.3), models, norms, virtual=virtual)
    weights = inverse / inverse.sum(0)
    np.testing.assert_allclose(result.own, weights, rtol=1e-12)
    expected = (by_element(weights) * models).sum(0)
    np.testing.assert_allclose(result.centre, np.tile(expected, (workers, 1)), atol=1e-12)
    np.testing.assert_allclose(result.x, 0.7 * models + 0.3 * expected, atol=1e-12)
    # One sum of [w x | w]: 2 (N - 1) messages each, over all workers 2 (N - 1) vectors of d + L numbers.
    assert [row["messages"] for row in result.ledger] == [2 * (workers - 1)] * workers
    assert sum(row["bytes"] for row in result.ledger) == 2 * (workers - 1) * (sum(SIZES) + len(SIZES)) * 8


@pytest.mark.parametrize("sync", [MGRAWA(pull=0.3), LGRAWA(pull=0.3)], ids=["mgrawa", "lgrawa"])
def test_pull_keeps_the_weighted_centre_and_shrinks_distances(sync: Any) -> None:
    models, norms = drawn()
    result = run_rounds(sync, models, norms)
    weights = by_element(np.broadcast_to(result.own, norms.shape))
    np.testing.assert_allclose((weights * result.x).sum(0), result.centre[0], atol=1e-12)
    np.testing.assert_allclose(result.x - result.centre, 0.7 * (models - result.centre), atol=1e-12)
    np.testing.assert_allclose(result.x[0] - result.x[1], 0.7 * (models[0] - models[1]), atol=1e-12)
    # The plain mean is another point and moves: it goes the same part of the way.
    np.testing.assert_allclose(result.x.mean(0), 0.7 * models.mean(0) + 0.3 * result.centre[0], atol=1e-12)
    assert np.abs(result.x.mean(0) - models.mean(0)).max() > 1e-3


def test_a_convex_loss_does_not_rise() -> None:
    rng = np.random.default_rng(3)
    root = rng.standard_normal((sum(SIZES), sum(SIZES)))
    matrix, optimum = root @ root.T, rng.standard_normal(sum(SIZES))

    def loss(x: np.ndarray) -> np.ndarray:
        return 0.5 * np.einsum("mi,ij,mj->m", x - optimum, matrix, x - optimum)

    for seed in range(5):
        models, norms = drawn(seed=seed)
        result = run_rounds(MGRAWA(pull=0.5), models, norms)
        before, after, weights = loss(models), loss(result.x), result.own[:, 0]
        assert loss(result.centre)[0] <= weights @ before
        assert weights @ after < weights @ before
        assert after.max() < before.max()


def test_limits_of_the_pull() -> None:
    models, norms = drawn()
    np.testing.assert_array_equal(run_rounds(MGRAWA(pull=0.0), models, norms).x, models)
    result = run_rounds(LGRAWA(pull=1.0), models, norms)
    np.testing.assert_array_equal(result.x, result.centre)
    np.testing.assert_array_equal(result.x, np.tile(result.x[0], (4, 1)))


def test_one_layer_and_equal_ratios_make_both_methods_one() -> None:
    models, norms = drawn()
    one = {"sizes": (sum(SIZES),)}
    first, second = (run_rounds(sync, models, norms[:, :1], **one) for sync in (MGRAWA(), LGRAWA()))
    np.testing.assert_array_equal(first.x, second.x)
    ratios = np.outer([1.0, 2.0, 3.0, 4.0], [5.0, 0.1, 2.0])
    first, second = (run_rounds(sync, models, ratios) for sync in (MGRAWA(), LGRAWA()))
    np.testing.assert_allclose(first.x, second.x, atol=1e-12)
    first, second = (run_rounds(sync, models, norms) for sync in (MGRAWA(), LGRAWA()))
    assert np.abs(first.x - second.x).max() > 1e-3


def test_sum_of_layers_or_euclidean_norm() -> None:
    models, _ = drawn(2)
    norms = np.array([[3.0, 4.0, 0.0], [5.0, 0.0, 0.0]])
    assert run_rounds(MGRAWA(norm="layers"), models, norms).own[:, 0] == pytest.approx([5 / 12, 7 / 12])
    assert run_rounds(MGRAWA(norm="l2"), models, norms).own[:, 0] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_models_send_their_weights_in_float32(dtype: torch.dtype) -> None:
    models, norms = drawn()
    models = torch.from_numpy(models).to(dtype).double().numpy()
    result = run_rounds(LGRAWA(pull=1.0), models, norms, dtype=dtype)
    weights = by_element((1 / norms) / (1 / norms).sum(0))
    tolerance = 2e-6 if dtype == torch.float32 else 2**-7
    np.testing.assert_allclose(result.x, np.tile((weights * models).sum(0), (4, 1)), atol=tolerance)
    assert sum(row["bytes"] for row in result.ledger) == 6 * (sum(SIZES) + len(SIZES)) * 4


# -- what must not spread ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [MGRAWA, LGRAWA], ids=["mgrawa", "lgrawa"])
def test_a_zero_norm_gives_no_nan(make: Any) -> None:
    models, norms = drawn()
    norms[1] = 0.0
    result = run_rounds(make(pull=0.5), models, norms)
    assert np.isfinite(result.x).all()
    np.testing.assert_allclose(result.centre[0], models[1], atol=1e-6)  # the limit: the winner takes it all
    norms[:] = 0.0
    np.testing.assert_allclose(run_rounds(make(pull=1.0), models, norms).x[0], models.mean(0), atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("make", [MGRAWA, LGRAWA], ids=["mgrawa", "lgrawa"])
def test_a_norm_that_is_not_finite_gets_weight_zero(make: Any, bad: float) -> None:
    models, norms = drawn()
    norms[2, 1] = bad
    result = run_rounds(make(pull=0.5), models, norms)
    rest = [0, 1, 3]
    clean = run_rounds(make(pull=0.5), models[rest], norms[rest])
    np.testing.assert_allclose(result.x[rest], clean.x, atol=1e-12)
    assert (result.own[2] == 0).all()
    np.testing.assert_allclose(result.x[2], 0.5 * models[2] + 0.5 * clean.centre[0], atol=1e-12)


def test_a_model_that_is_not_finite_takes_the_centre() -> None:
    models, norms = drawn()
    models[3, 5] = np.nan
    result = run_rounds(MGRAWA(pull=0.5), models, norms)
    clean = run_rounds(MGRAWA(pull=0.5), models[:3], norms[:3])
    np.testing.assert_allclose(result.x[:3], clean.x, atol=1e-12)
    np.testing.assert_allclose(result.x[3], clean.centre[0], atol=1e-12)


def test_a_worker_without_examples_weighs_nothing() -> None:
    models, norms = drawn()
    norms[0] = 0.0  # its gradient is zero because it has none
    result = run_rounds(MGRAWA(pull=0.5), models, norms, batches=[0, 1, 1, 1])
    clean = run_rounds(MGRAWA(pull=0.5), models[1:], norms[1:])
    assert result.own[0, 0] == 0
    np.testing.assert_allclose(result.x[1:], clean.x, atol=1e-12)


def test_no_worker_moves_without_a_finite_norm() -> None:
    models, norms = drawn()
    result = run_rounds(LGRAWA(pull=0.5), models, np.full_like(norms, np.nan))
    np.testing.assert_array_equal(result.x, models)


# -- smoothing --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", ["train", "last"])
def test_smoothing_is_unbiased_from_the_first_round(source: str) -> None:
    models, norms = drawn()

    def constant(bound: Any, number: int) -> None:
        np.testing.assert_allclose(bound.norms.estimate(), norms[bound.context.rank], rtol=1e-12)
        assert bound.norms.count == number + 1

    run_rounds(LGRAWA(smoothing=0.43, source=source), models, norms, rounds=4, each=constant)


def test_smoothing_is_its_recursion() -> None:
    context = Context(None, flat=Flat(Layers((1,))))  # type: ignore[arg-type]
    norms = GradientNorms(context, "train", 0.43, None, False)
    level = 0.0
    for count, value in enumerate([3.0, 1.0, 7.0, 2.0], 1):
        norms._add(torch.tensor([value], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        level = 0.43 * level + 0.57 * value
        known = norms.estimate()
        assert known is not None
        assert known.item() == pytest.approx(level / (1 - 0.43**count), rel=1e-12)


def test_a_bad_measurement_is_forgotten_after_a_good_one() -> None:
    norms = GradientNorms(Context(None, flat=Flat(Layers((1,)))), "train", 0.5, None, False)  # type: ignore[arg-type]
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    norms._add(one, zero)
    norms._add(one * float("nan"), zero)
    assert norms.estimate() is None
    norms._add(one, zero)
    assert norms.estimate() == one


def test_a_gradient_that_waits_for_its_round_is_kept() -> None:
    """The next step may have no examples, and the round must still find the gradient of the one before."""
    model = Layers((1,))
    context = Context(None, flat=Flat(model))  # type: ignore[arg-type]
    context.clock.batch = 1
    first, second = (GradientNorms(context, "last", 0.5, None, False) for _ in range(2))
    next(model.parameters()).grad = torch.tensor([-3.0], dtype=torch.float64)
    first.observe_step(0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.at_round() == first.at_round() == 3.0


# -- between rounds ---------------------------------------------------------------------------------------------------
def test_proximity_is_spread_over_the_steps_of_a_round() -> None:
    x, centre = torch.tensor([3.0]), torch.tensor([1.0])
    proximal_step(x, centre, prox=0.0, steps_per_round=4)
    proximal_step(x, centre, prox=0.5, steps_per_round=0)  # before the first round the centre is only where all began
    assert x.item() == 3.0
    for step in range(1, 5):
        proximal_step(x, centre, prox=0.01, steps_per_round=4)
        assert x.item() == pytest.approx(1 + 2 * (1 - 0.01 / 4) ** step, rel=1e-6)


# -- complete runs ----------------------------------------------------------------------------------------------------


def test_limits_are_the_methods_they_should_be() -> None:
    period = {"period": 3}
    plain = toy_sha(PeriodicAverage(weights="uniform"), **period)
    assert toy_sha(MGRAWA(pull=1.0, exponent=0.0), **period) == plain
    assert toy_sha(LGRAWA(pull=1.0, exponent=0.0), **period) == plain
    alone = toy_sha(NoSync(), period=1)
    assert toy_sha(MGRAWA(pull=0.0), **period) == alone
    assert toy_sha(LGRAWA(pull=0.0, source="fresh"), **period) == alone  # measuring disturbs nothing
    assert toy_sha(MGRAWA(pull=1.0), **period) not in (plain, alone)


def test_combinations_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="source='fresh'"):
        MGRAWA(debias=True)
    with pytest.raises(UserError, match="source='fresh'"):
        LGRAWA(examples=64)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(comm: Comm) -> None:
        with eq.attach(model, optimizer, sync=LGRAWA(source="fresh")):
            pass

    with pytest.raises(UserError, match="source='train' with eq.attach"):
        eq.spawn(loop, 2, virtual=True)


@pytest.mark.parametrize("source", ["last", "train"])
def test_every_round_of_total_steps_has_new_norms(source: str) -> None:
    """Rounds come after any number of a worker's steps, also after so many fewer than the time before that none of its
    steps was near the end of a round as long.
    """
    seen: list[tuple[int, bool]] = []

    class Spy(MGRAWA):
        def after_step(self, x: torch.Tensor) -> None:
            before = self.norms.smoothed.clone() if source == "last" else self.counted
            super().after_step(x)
            now = self.norms.smoothed if source == "last" else self.norms.count
            seen.append((self.context.rank, not torch.equal(torch.as_tensor(before), torch.as_tensor(now))))
            self.counted = self.norms.count

        counted = 0

    cluster = eq.Cluster([1.0, 2.7, 0.6], jitter=1.0)
    toy_sha(Spy(source=source), period=eq.period.TotalSteps(20), steps=120, workers=3, cluster=cluster)
    assert len(seen) == 18
    assert all(new for _, new in seen)
