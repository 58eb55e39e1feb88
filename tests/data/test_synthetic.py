import numpy as np
import pytest
import torch

from equipoise.core.errors import UserError
from equipoise.data import Synthetic


def test_classify() -> None:
    loaded = Synthetic(examples=100, features=5, classes=3).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("classify", 3, (5,))
    assert (len(loaded.train), len(loaded.test)) == (80, 20)
    assert (loaded.train.x.dtype, loaded.train.y.dtype) == (torch.float32, torch.int64)
    counts = np.bincount(torch.cat([loaded.train.y, loaded.test.y]))
    assert counts.max() - counts.min() <= 1


def test_classes_are_apart_without_noise() -> None:
    train = Synthetic(noise=0.0, classes=3).load().train
    assert len(torch.unique(torch.cat([train.x, train.y[:, None]], 1), dim=0)) == 3


def test_regress_has_the_noise_it_was_asked_for() -> None:
    loaded = Synthetic(kind="regress", noise=0.3, examples=4000).load()
    assert (loaded.task, loaded.outputs, loaded.train.y.shape[1:]) == ("regress", 1, (1,))
    x, y = loaded.train.x.numpy(), loaded.train.y.numpy()
    assert x.dtype == y.dtype == np.float32
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert abs(residual.std() - 0.3) < 0.02


@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_the_seed_decides_all(kind: str) -> None:
    first, again, other = (Synthetic(kind=kind, seed=seed).load() for seed in (0, 0, 1))
    assert first.train.x.equal(again.train.x)
    assert first.test.y.equal(again.test.y)
    assert not first.train.x.equal(other.train.x)


def test_both_parts_have_an_example_whatever_the_share() -> None:
    for test in (0.001, 0.999):
        loaded = Synthetic(examples=2, test=test).load()
        assert (len(loaded.train), len(loaded.test)) == (1, 1)


def test_bad_options() -> None:
    for options, match in (
        ({"kind": "cluster"}, "classify, regress"),
        ({"noise": float("inf")}, "at most"),
        ({"noise": float("nan")}, "not a number"),
        ({"classes": 1}, "at least 2"),
    ):
        with pytest.raises(UserError, match=match):
            Synthetic(**options)
