"""Every partition covers the data; the makers of skew skew it."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.config import registry
from equipoise.data.view import DatasetView

LABELS = np.random.default_rng(0).integers(5, size=203)
FEATURES = np.random.default_rng(1).standard_normal((203, 3)).astype(np.float32)
NAMES = [name for name in registry.names("partition") if name != "from-file"]


def profile(blocks: list[np.ndarray]) -> np.ndarray:
    """Largest part that one class has in each block."""
    return np.array([np.bincount(LABELS[b], minlength=5).max() / len(b) for b in blocks])


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_one_owner_and_every_worker_an_example(name: str) -> None:
    view = DatasetView(203, LABELS, (FEATURES, LABELS))
    for workers in (1, 2, 7, 203):
        blocks = registry.get("partition", name)().blocks(view, workers, seed=3)
        assert np.sort(np.concatenate(blocks)).tolist() == list(range(203)), workers
        assert min(map(len, blocks)) >= 1, workers
        again = registry.get("partition", name)().blocks(view, workers, seed=3)
        assert all((a == b).all() for a, b in zip(blocks, again, strict=True)), workers


def test_skew_makers_skew_and_the_others_do_not() -> None:
    view = DatasetView(203, LABELS, (FEATURES, LABELS))
    most = {name: profile(registry.get("partition", name)().blocks(view, 5, seed=0)).max() for name in NAMES}
    for name in ("sorted", "shards", "dirichlet"):
        assert most[name] > 0.4, name
    for name in ("stratified", "submodular"):
        assert most[name] < 0.3, name  # 0.25 is the largest class itself, and blocks have 40 examples


def test_small_alpha_is_more_skewed() -> None:
    from equipoise.partition import Dirichlet

    view = DatasetView(203, LABELS)
    means = [np.mean([profile(Dirichlet(a).blocks(view, 4, s)).mean() for s in range(10)]) for a in (0.05, 1.0, 100.0)]
    assert means[0] > means[1] > means[2]
