"""For all tests: property tests draw the same examples every time, and no worker outlives its test."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("equipoise", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("equipoise")


@pytest.fixture(autouse=True)
def nobody_left_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == [], "a worker is still there"
