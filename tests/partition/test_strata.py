"""What stands for classes where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.core.errors import DataError
from equipoise.partition.strata import strata
from equipoise.partition.submodular import view_of

X = np.random.default_rng(0).standard_normal((60, 5))


def test_classes_as_they_are() -> None:
    labels = np.random.default_rng(1).choice([3, 7, 9], 60)
    groups, notes = strata(view_of(X, labels), 10, 4)
    assert np.array([3, 7, 9])[groups].tolist() == labels.tolist()
    assert notes == []


def test_no_targets_is_one_class() -> None:
    groups, notes = strata(view_of(X), 10, 4)
    assert set(groups) == {0}
    assert "no labels" in notes[0]


def test_real_targets_by_quantiles() -> None:
    targets = np.random.default_rng(2).standard_normal(60)
    groups, notes = strata(view_of(X, targets), 4, 4)
    assert np.bincount(groups).tolist() == [15, 15, 15, 15]
    assert targets[groups == 0].max() < targets[groups == 1].min()  # bins are ranges
    assert "4 quantile bins" in notes[0]
    assert strata(view_of(X, targets[:, None]), 4, 4)[0].tolist() == groups.tolist()
    assert set(strata(view_of(X, np.zeros(60)), 4, 4)[0]) == {0}


def test_several_real_targets_by_their_main_direction() -> None:
    rng = np.random.default_rng(3)
    main = rng.standard_normal(60)
    targets = np.stack([main, -main], axis=1) + 0.01 * rng.standard_normal((60, 2))
    groups, _ = strata(view_of(X, targets), 3, 4)
    means = [main[groups == g].mean() for g in range(3)]
    assert abs(means[2] - means[0]) > 1.5


def test_several_labels_by_combination_with_rare_ones_together() -> None:
    labels = np.zeros((60, 3), dtype=np.int64)
    labels[:30, 0] = 1
    labels[30:58, 1] = 1
    labels[58, 2] = 1  # and 59 has none: two combinations of one example each
    groups, notes = strata(view_of(X, labels), 10, 4)
    assert sorted(np.bincount(groups).tolist()) == [2, 28, 30]
    assert groups[58] == groups[59]
    assert "4 combinations" in notes[0]
    assert "2 with fewer than 4" in notes[0]


def test_nan_targets_are_refused() -> None:
    targets = np.zeros(60)
    targets[9] = np.nan
    with pytest.raises(DataError, match="target of example 9"):
        strata(view_of(X, targets), 10, 4)
