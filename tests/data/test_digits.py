import numpy as np
import pytest
import torch

from equipoise.core.errors import UserError
from equipoise.data import Digits


def test_shape_and_split() -> None:
    loaded = Digits().load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("classify", 10, (1, 8, 8))
    assert len(loaded.train) + len(loaded.test) == 1797
    assert loaded.train.x.shape[1:] == (1, 8, 8)
    assert loaded.train.x.dtype == torch.float32
    assert (loaded.train.x.min(), loaded.train.x.max()) == (0, 1)
    share = np.bincount(loaded.test.y) / (np.bincount(loaded.test.y) + np.bincount(loaded.train.y))
    assert np.abs(share - 0.2).max() < 0.005


def test_the_seed_alone_decides_the_split() -> None:
    first, again, other = Digits().load(), Digits().load(), Digits(seed=1).load()
    assert first.test.x.equal(again.test.x)
    assert not first.test.x.equal(other.test.x)


def test_limit_keeps_the_first_and_leaves_the_test_part() -> None:
    full, some = Digits().load(), Digits(limit=7).load()
    assert some.train.x.equal(full.train.x[:7])
    assert some.test.x.equal(full.test.x)


def test_bad_options() -> None:
    with pytest.raises(UserError, match="below 1"):
        Digits(test=1.0)
    with pytest.raises(UserError, match="at least 1"):
        Digits(limit=0)
    assert len(Digits(test=0.0001).load().test) == 1
