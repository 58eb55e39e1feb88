"""The estimators are unbiased, invariant and as accurate as the arithmetic says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equipoise.batch.noise import NoiseEstimate, across_examples, across_workers
from equipoise.batch.probe import ProbeConfig, chunk_statistics
from equipoise.comm.fused_reduction import chunks

DIM = 40
MEAN = np.linspace(-0.3, 0.4, DIM)
DEVIATIONS = np.linspace(0.2, 1.8, DIM)
TRACE = float((DEVIATIONS**2).sum())


def drawn(rng: np.random.Generator, sizes: list[int], mean: np.ndarray = MEAN) -> np.ndarray:
    """One vector per worker: the mean gradient of so many examples."""
    noise = rng.standard_normal((len(sizes), len(mean))) * DEVIATIONS[: len(mean)]
    return mean + noise / np.sqrt(np.asarray(sizes, dtype=float))[:, None]


def measured(vectors: np.ndarray, sizes: list[int], **options: bool) -> NoiseEstimate:
    """The estimate from one vector per worker."""
    n = np.asarray(sizes, dtype=float)
    v = n @ vectors / n.sum()
    products = (vectors @ v).tolist() if options.pop("along", False) else None
    estimate = across_workers(
        (vectors**2).sum(1).tolist(), float(v @ v), n.tolist(), n.tolist(), products=products, **options
    )
    assert estimate is not None
    return estimate


def many(sizes: list[int], count: int = 4000) -> list[NoiseEstimate]:
    rng = np.random.default_rng(1)
    return [measured(drawn(rng, sizes), sizes) for _ in range(count)]


@pytest.mark.parametrize("sizes", [[8, 8, 8, 8], [16, 16], [4, 8, 16, 64, 7]])
def test_variance_and_norm_are_unbiased_for_equal_and_unequal_sizes(sizes: list[int]) -> None:
    estimates = many(sizes)
    for values, truth in (
        ([e.variance for e in estimates], TRACE),
        ([e.square for e in estimates], float(MEAN @ MEAN)),
        ([e.norm for e in estimates], float(MEAN @ MEAN) + TRACE / sum(sizes)),
    ):
        error = np.std(values) / math.sqrt(len(values))
        assert abs(np.mean(values) - truth) < 4 * error
        assert error < 0.02 * truth  # or the line above says nothing


def test_the_formula_for_equal_sizes_is_wrong_for_unequal_ones() -> None:
    sizes = [4, 8, 16, 64, 7]
    rng = np.random.default_rng(2)
    plain = []
    for _ in range(3000):
        vectors = drawn(rng, sizes, mean=np.zeros(DIM))
        plain.append(np.mean(sizes) / 4 * ((vectors - vectors.mean(0)) ** 2).sum())
    assert np.mean(plain) / TRACE == pytest.approx(2.36, rel=0.02)


@pytest.mark.parametrize("workers", [2, 4])
def test_spread_of_the_estimate(workers: int) -> None:
    values = [e.variance for e in many([8] * workers)]
    effective = TRACE**2 / float((DEVIATIONS**4).sum())
    assert np.std(values) / TRACE == pytest.approx(math.sqrt(2 / ((workers - 1) * effective)), rel=0.05)


def test_for_equal_sizes_it_is_the_formula_of_the_paper() -> None:
    b, workers, eta = 8, 4, 0.7
    vectors = drawn(np.random.default_rng(3), [b] * workers)
    mean = vectors.mean(0)
    variance = b / (workers - 1) * ((vectors - mean) ** 2).sum()
    estimate = measured(vectors, [b] * workers)
    assert estimate.variance == pytest.approx(variance, rel=1e-12)
    assert estimate.variance / (eta**2 * estimate.norm * workers) == pytest.approx(
        variance / (workers * eta**2 * mean @ mean), rel=1e-12
    )


def test_own_gradients_are_tested_with_their_own_norm_and_noise() -> None:
    vectors = drawn(np.random.default_rng(4), [8] * 4)
    estimate = measured(vectors, [8] * 4, own=True)
    assert estimate.parts == 4
    assert estimate.noise == pytest.approx(1 / 8)
    assert estimate.norm == pytest.approx(estimate.square + estimate.variance / 8)
    norm = np.mean([measured(drawn(np.random.default_rng(s), [8] * 4), [8] * 4, own=True).norm for s in range(2000)])
    assert norm == pytest.approx(float(MEAN @ MEAN) + TRACE / 8, rel=0.01)


def test_invariances() -> None:
    rng = np.random.default_rng(5)
    sizes = [8, 4, 16, 8]
    vectors = drawn(rng, sizes)
    estimate = measured(vectors, sizes, along=True)
    rotation, _ = np.linalg.qr(rng.standard_normal((DIM, DIM)))
    swap = [2, 0, 3, 1]
    rotated = measured(vectors @ rotation, sizes, along=True)
    swapped = measured(vectors[swap], [sizes[i] for i in swap], along=True)
    for other in (rotated, swapped):
        np.testing.assert_allclose(other[:5], estimate[:5], rtol=1e-11)
    scaled = measured(3 * vectors, sizes, along=True)
    np.testing.assert_allclose(
        [scaled.variance, scaled.square], [9 * estimate.variance, 9 * estimate.square], rtol=1e-12
    )
    assert scaled.along == pytest.approx(81 * estimate.along, rel=1e-12)
    assert scaled.noise == estimate.noise


@pytest.mark.parametrize("own", [False, True])
def test_statistics_of_chunks_add_up_for_any_chunks_and_scales(own: bool) -> None:
    config = ProbeConfig(own=own, along=True, examples=0, first=False)
    sizes, scales = [8.0, 4.0, 16.0], [1.0, 0.5, 0.25]
    vectors = torch.randn(3, 1001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = chunk_statistics(list(vectors), [1.0] * 3, sizes, config, torch.empty(1001, dtype=torch.float64))
    rows = [v * s for v, s in zip(vectors, scales, strict=True)]
    for size in (1, 2, 3, 7):
        parts = [
            chunk_statistics([row[a:b] for row in rows], scales, sizes, config, rows[0].new_empty(b - a))
            for a, b in chunks(1001, size)
        ]
        np.testing.assert_allclose(np.sum(parts, 0), total, rtol=1e-12)
    v = (torch.tensor(sizes, dtype=torch.float64) @ vectors) / sum(sizes)
    products = (vectors @ vectors.T).flatten() if own else vectors @ v
    np.testing.assert_allclose(total, [float(v @ v), *(vectors**2).sum(1), *products], rtol=1e-12)


@pytest.mark.parametrize("own", [False, True])
def test_the_variance_along_the_gradient_under_test_is_unbiased(own: bool) -> None:
    """v' S v of the gradient v under test: the mean of all workers, or each worker's own."""
    rng = np.random.default_rng(9)
    sizes, measures, truths = [4, 8, 16, 12, 8, 16], [], []
    for _ in range(2500):
        vectors = drawn(rng, sizes)
        n = np.asarray(sizes, dtype=float)
        v = n @ vectors / n.sum()
        products = (vectors @ vectors.T).flatten() if own else vectors @ v
        norms = (vectors**2).sum(1).tolist()
        estimate = across_workers(norms, float(v @ v), n.tolist(), n.tolist(), own=own, products=products.tolist())
        assert estimate is not None
        measures.append(estimate.along)
        truths.append(
            n @ ((vectors * DEVIATIONS) ** 2).sum(1) / n.sum() if own else float(((v * DEVIATIONS) ** 2).sum())
        )
    assert np.mean(measures) == pytest.approx(np.mean(truths), rel=0.05)


def test_equal_gradients_have_no_noise_and_one_worker_has_no_estimate() -> None:
    same = np.tile(MEAN, (4, 1)).astype(np.float32).astype(float)
    assert measured(same, [8] * 4).variance < 1e-14 * float(MEAN @ MEAN) * 8
    assert across_workers([1.0], 1.0, [8.0], [8.0]) is None
    assert across_workers([1.0, 0.0], 1.0, [8.0, 0.0], [8.0, 0.0]) is None
    assert across_workers([0.0, 0.0], 0.0, [0.0, 0.0], [0.0, 0.0]) is None


def test_a_worker_without_examples_does_not_count() -> None:
    vectors, sizes = drawn(np.random.default_rng(6), [8, 8, 8]), [8, 8, 8]
    with_idle = across_workers(
        [*(vectors**2).sum(1).tolist(), 99.0],
        float(vectors.mean(0) @ vectors.mean(0)),
        [8.0] * 3 + [0.0],
        [8.0] * 3 + [0.0],
    )
    assert with_idle is not None
    np.testing.assert_allclose(with_idle[:4], measured(vectors, sizes)[:4], rtol=1e-12)


def test_an_estimate_that_is_not_finite_says_so() -> None:
    for bad in (math.nan, math.inf):
        estimate = across_workers([bad, 1.0], bad, [8.0, 8.0], [8.0, 8.0])
        assert estimate is not None
        assert not estimate.finite


@pytest.mark.parametrize("own", [False, True])
def test_examples_give_unbiased_estimates_too(own: bool) -> None:
    rng = np.random.default_rng(7)
    variances, squares, alongs = [], [], []
    for _ in range(3000):
        rows = MEAN + rng.standard_normal((2, 8, DIM)) * DEVIATIONS  # two workers, 8 examples each
        means = rows.mean(1)
        spreads = ((rows - means[:, None]) ** 2).sum((1, 2))
        mean = means.mean(0)
        estimate = across_examples(
            spreads.tolist(),
            [8.0, 8.0],
            (means**2).sum(1).tolist(),
            float(mean @ mean),
            [8.0, 8.0],
            own=own,
            products=[7.0, 7.0],
        )
        assert estimate is not None
        variances.append(estimate.variance)
        squares.append(estimate.square)
        alongs.append(estimate.along)
    assert np.mean(variances) == pytest.approx(TRACE, rel=0.01)
    assert np.mean(squares) == pytest.approx(float(MEAN @ MEAN), rel=0.03)
    assert set(alongs) == {1.0}  # 14 squares over 14 degrees of freedom
    single = across_examples([TRACE * 7], [8.0], [5.0], 5.0, [8.0])
    assert single is not None
    assert single.variance == pytest.approx(TRACE)
    assert across_examples([0.0], [1.0], [5.0], 5.0, [8.0]) is None, "one example says nothing of noise"


@pytest.mark.parametrize(("drift", "ratio"), [(0.01, 0.995), (0.16, 0.93), (0.8, 0.71)])
def test_the_pseudo_gradient_is_biased_low_by_drift_times_curvature(drift: float, ratio: float) -> None:
    """`drift` is learning rate x largest curvature x H; curvatures are spread evenly below it."""
    rng = np.random.default_rng(8)
    workers, local, batch, dim, lr = 4, 64, 8, 400, 1.0
    curvature = np.linspace(0, drift / (lr * local), dim)
    values = []
    for _ in range(40):
        x = np.zeros((workers, dim))
        for _ in range(local):
            x -= lr * (curvature * x + rng.standard_normal((workers, dim)) / math.sqrt(batch))
        v = -x / (lr * local)
        estimate = measured(v, [batch * local] * workers)
        values.append(estimate.variance / dim)
    assert np.mean(values) == pytest.approx(ratio, abs=0.012)
