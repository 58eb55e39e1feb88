import numpy as np
import pytest

from equipoise.config import registry
from equipoise.core.errors import DataError
from equipoise.data import Arrays, Data
from equipoise.data.base import examples


def test_every_registered_data_set_is_there_with_defaults() -> None:
    for entry in registry.entries("data"):
        data = registry.get("data", entry.name)()
        assert isinstance(data, Data)
        assert registry.name_of(data) == entry.name
        assert eval(repr(data), {type(data).__name__: type(data)}) == data


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["input", "target"])
def test_values_that_are_not_finite_are_refused_with_the_first_example(value: float, part: str) -> None:
    arrays = {"input": np.ones((5, 2, 3), np.float32), "target": np.ones((5, 1), np.float32)}
    arrays[part][3] = arrays[part][4] = value
    with pytest.raises(DataError, match=f"^some.file: the {part} of example 3 .*NaN or infinity"):
        examples(arrays["input"], arrays["target"], "some.file")
    assert len(examples(arrays["input"], arrays["target"], "some.file", limit=3)) == 3


def test_opposite_infinities_do_not_hide_in_the_sum() -> None:
    x = np.array([[1.0], [np.inf], [-np.inf]])
    with pytest.raises(DataError, match="example 1 "):
        examples(x, np.zeros(3, np.int64), "some.file")


def test_huge_but_finite_values_pass() -> None:
    x = np.full((4, 2), np.finfo(np.float64).max)
    assert len(examples(x, np.zeros(4, np.int64), "some.file")) == 4


def test_no_examples_are_refused() -> None:
    with pytest.raises(DataError, match=r"^some.file: no examples"):
        examples(np.zeros((0, 2)), np.zeros(0, np.int64), "some.file")


def test_arrays_give_the_same_by_index_and_by_batch() -> None:
    data = examples(np.arange(6.0).reshape(3, 2), np.arange(3), "some.file")
    assert isinstance(data, Arrays)
    x, y = data.batch(np.array([2, 0]))
    for i, (xi, yi) in enumerate(data.__getitems__([2, 0])):
        assert xi.equal(x[i])
        assert yi == y[i]
