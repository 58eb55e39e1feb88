"""For all tests: property tests draw the same examples, tensors this small use one thread, no worker is left."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("equipoise", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("equipoise")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices here are too small to share, and other tests may be running."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what was written survives the end of a process without `fsync`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def packages_are_not_searched() -> None:
    """All tests and their packages are a million objects: frozen, no collection and no forked worker touches them.

    A worker that touches them copies their pages, and `eq.attach` looks through all objects that are not frozen.
    """
    gc.collect()  # what is garbage now would be kept
    gc.freeze()


@pytest.fixture(autouse=True)
def nobody_left_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == [], "a worker is still there"
