"""What every registered method promises (`equipoise.testing`). A new method adds nothing here and passes everything."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.config import registry
from equipoise.testing import PROMISES, check_graph, check_one_worker, check_processes
from equipoise.testing.promises import SAYS, same_as_virtual

from . import group, toy

TRAINED_WIRES = ("int8", "top-k", "power-sgd")  # test_wires.py trains all of them, with every sync

CASES = [
    pytest.param(
        entry.axis, entry.name, promise, id=f"{entry.axis}-{entry.name}-{promise.__name__.removeprefix('check_')}"
    )
    for axis in toy.AXES
    for entry in registry.entries(axis)
    for promise in (SAYS if axis == "wire" and entry.name not in TRAINED_WIRES else PROMISES[axis])
    if promise is not check_processes
]
ON_PROCESSES = [
    (axis, name)
    for axis in toy.AXES
    for name in registry.names(axis)
    if check_processes in PROMISES[axis] and not (axis == "wire" and name not in TRAINED_WIRES)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("methods")


@pytest.mark.parametrize(("axis", "name", "promise"), CASES)
def test_promise(axis: str, name: str, promise: Callable[[Any], None], folder: Path) -> None:
    if promise is check_graph:
        for size in (1, 2, 4, 8, 16):
            check_graph(toy.make(axis, name, folder, size), (size,))
    else:
        workers = 1 if promise is check_one_worker else toy.WORKERS
        promise(toy.make(axis, name, folder, workers))


@cache
def in_processes(axis: str, folder: Path) -> dict[str, dict[str, Any]]:
    """The results of the methods of an axis in one group of processes, one after the other."""
    methods = {name: toy.make(axis, name, folder) for other, name in ON_PROCESSES if other == axis}
    return group.results({name: partial(toy.train, method) for name, method in methods.items()})


@pytest.mark.parametrize(("axis", "name"), ON_PROCESSES)
def test_processes(axis: str, name: str, folder: Path) -> None:
    """What `check_processes` checks, without a launch for each of them."""
    same_as_virtual(toy.make(axis, name, folder), in_processes(axis, folder)[name])


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.AXES))
def test_exported_under_its_class_name(axis: str, name: str) -> None:
    cls = registry.get(axis, name)
    assert getattr(getattr(eq, axis), cls.__name__) is cls
    assert cls.__name__ in dir(getattr(eq, axis))


@pytest.mark.parametrize("axis", [*toy.AXES, "signal"])
def test_a_package_lists_what_a_user_chooses_and_no_module(axis: str) -> None:
    package = getattr(eq, axis)
    assert all(isinstance(getattr(package, name), type) for name in dir(package)), dir(package)


def test_the_top_lists_its_names_and_nothing_that_they_import() -> None:
    assert dir(eq) == sorted(eq.__all__)
    assert all(getattr(eq, name) is not None for name in dir(eq))
