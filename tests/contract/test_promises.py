"""What every registered method promises. A new method adds nothing here and passes everything."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.config import registry
from equipoise.core.errors import UserError
from equipoise.loop.worker import Worker

from . import toy

NAMESPACE = {
    name: cls
    for axis in (eq.partition, eq.order, eq.batch, eq.period, eq.topology, eq.sync)
    for name, cls in vars(axis).items()
    if isinstance(cls, type)
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """The result of each method on virtual workers, trained once for all tests."""
    folder = tmp_path_factory.mktemp("methods")

    @cache
    def result(axis: str, name: str) -> dict[str, Any]:
        return toy.train(toy.make(axis, name, folder)).result

    return result


@pytest.fixture(scope="module")
def plain_sha() -> str:
    """What plain SGD on one worker gives."""
    return toy.train(eq.sync.NoSync(), workers=1).result["params_sha256"]


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.AXES))
def test_built_from_its_repr(axis: str, name: str, tmp_path: Path) -> None:
    method = toy.make(axis, name, tmp_path)
    again = eval(repr(method), dict(NAMESPACE))
    assert again == method
    assert type(again) is type(method)


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.AXES))
def test_found_under_its_paper_name(axis: str, name: str) -> None:
    cls = registry.get(axis, name)
    assert getattr(getattr(eq, axis), cls.__name__) is cls, "export it from the axis module"
    assert inspect.getdoc(cls), "a docstring with the equation"
    assert registry.name_of(cls.__new__(cls)) == name


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.AXES))
def test_every_option_has_help_and_refuses_nonsense(axis: str, name: str, tmp_path: Path) -> None:
    method = toy.make(axis, name, tmp_path)
    for field in dataclasses.fields(method):
        assert field.metadata.get("help"), f"{field.name} needs help="
        for bad in _nonsense(field):
            with pytest.raises(UserError, match=field.name):
                dataclasses.replace(method, **{field.name: bad})


def _nonsense(field: dataclasses.Field) -> list[Any]:
    bad: list[Any] = [object()]
    limits = field.metadata
    numeric = isinstance(field.default, (int, float)) and not isinstance(field.default, bool)
    if numeric:
        bad.append(math.nan)
    if limits["least"] is not None:
        bad.append(limits["least"] - 1)
    if limits["above"] is not None:
        bad.append(limits["above"])
    if limits["most"] is not None:
        bad.append(limits["most"] + 1)
    if limits["below"] is not None:
        bad.append(limits["below"])
    if limits["choices"] is not None:
        bad.append("no such choice")
    return bad


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.TRAINED))
def test_trains_the_toy_problem(axis: str, name: str, tmp_path: Path) -> None:
    method = toy.make(axis, name, tmp_path)
    before = nn.functional.cross_entropy(toy.model().eval()(toy.INPUTS), toy.TARGETS).item()
    run = toy.train(method, steps=48)
    assert run.result["steps"] == 48
    assert run.result["models"]["mean"]["loss"] < 0.65 * before


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.TRAINED))
def test_deterministic_and_the_same_on_virtual_workers_and_processes(
    axis: str, name: str, tmp_path: Path, undisturbed: Callable[[str, str], dict[str, Any]]
) -> None:
    method, virtual = toy.make(axis, name, tmp_path), undisturbed(axis, name)
    assert toy.train(method).result["params_sha256"] == virtual["params_sha256"]
    processes = toy.train(method, virtual=False).result
    # Where real time decides who does what, the sums still hold: as many steps, rounds and bytes.
    keys = ("params_sha256", "samples", "consensus") if method.exact else ()
    for key in (*keys, "steps", "bytes", "messages", "rounds"):
        assert processes[key] == virtual[key], key
    assert toy.train(method, seed=1).result["params_sha256"] != virtual["params_sha256"]


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.TRAINED))
def test_stop_and_resume_gives_the_same_bits(
    axis: str, name: str, tmp_path: Path, undisturbed: Callable[[str, str], dict[str, Any]]
) -> None:
    """Stopped in the first epoch and again in the second."""
    method, run = toy.make(axis, name, tmp_path), tmp_path / "run"
    first = toy.train(method, steps=5, out=run).result
    second = toy.train(method, steps=11, out=run, resume=True).result
    resumed = toy.train(method, out=run, resume=True).result
    assert first["samples"] < second["samples"] < resumed["samples"]
    for key in ("params_sha256", "bytes", "messages", "rounds", "samples", "consensus", "models"):
        assert resumed[key] == undisturbed(axis, name)[key], key


@pytest.mark.parametrize(("axis", "name"), toy.methods(*toy.TRAINED))
def test_one_worker_is_plain_sgd(axis: str, name: str, tmp_path: Path, plain_sha: str) -> None:
    method = toy.make(axis, name, tmp_path)
    if axis in ("partition", "order", "batch"):
        if name == "from-file":
            method = dataclasses.replace(method, path=str(_everything(tmp_path)))
        # These decide which examples come when, also for one worker: the run must work and count them all.
        result = toy.train(method, workers=1, steps=None, epochs=1).result
        assert result["samples"] == toy.EXAMPLES
        assert result["bytes"] == 0
    else:
        assert toy.train(method, workers=1).result["params_sha256"] == plain_sha


def _everything(folder: Path) -> Path:
    path = folder / "one.json"
    path.write_text('{"blocks": [' + str(list(range(toy.EXAMPLES))) + "]}")
    return path


@pytest.mark.parametrize(("axis", "name"), toy.methods("sync"))
def test_ledger_equals_the_declared_cost(axis: str, name: str, tmp_path: Path) -> None:
    """Step by step and worker by worker, on even and odd numbers of them."""
    job = _job(toy.make(axis, name, tmp_path))

    def loop(comm: Any) -> None:
        worker = Worker(job, comm)
        for _ in range(13):
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            ledger, rounds = comm.ledger.state_dict(), worker.clock.rounds
            worker.step()
            sent = comm.ledger.messages - ledger["messages"], comm.ledger.bytes - ledger["bytes"]
            flat = worker.flat
            declared = worker.sync.cost(
                len(flat), flat.x.element_size(), comm.rank, comm.size, worker.clock.due, rounds
            )
            assert sent == declared, f"worker {comm.rank} of {comm.size}, step {worker.clock.step}"

    for workers in (2, 3, 4, 5):
        eq.spawn(loop, workers, virtual=True)


def _job(method: Any) -> Any:
    from equipoise.data.source import Source
    from equipoise.loop.job import Job, Length

    chosen = toy.settings(method)
    period = chosen.get("period", 1)
    return Job(
        model=toy.model,
        loss=nn.CrossEntropyLoss(),
        train=Source((toy.INPUTS, toy.TARGETS)),
        length=Length(steps=100),
        optimizer=chosen["optimizer"],
        batch=eq.batch.Fixed(8),
        sync=method,
        period=eq.period.Every(period) if isinstance(period, int) else period,
    )


@pytest.mark.parametrize(("axis", "name"), toy.methods("sync"))
def test_state_survives_a_round_trip(axis: str, name: str, tmp_path: Path) -> None:
    """What `state_dict` gives is plain, complete, and not an alias of what the worker goes on changing."""
    method = toy.make(axis, name, tmp_path)
    job = _job(method)

    def loop(comm: Any) -> None:
        worker = Worker(job, comm)
        for _ in range(5):
            worker.step()
        state = worker.sync.state_dict()
        torch.save(state, tmp_path / f"{comm.rank}.pt")
        worker.step()
        stored = torch.load(tmp_path / f"{comm.rank}.pt", weights_only=True)
        assert _same(state, stored), "the state changed after it was given out"
        worker.sync.load_state_dict(stored)
        assert _same(worker.sync.state_dict(), stored)
        with pytest.raises(UserError):
            worker.sync.load_state_dict({"unknown": 1})

    eq.spawn(loop, toy.WORKERS, virtual=True)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return set(a) == set(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


@pytest.mark.parametrize(("axis", "name"), toy.methods("topology"))
def test_topology_is_a_pure_function_of_the_round(axis: str, name: str, tmp_path: Path) -> None:
    for size in (1, 2, 4, 8, 16):
        graph = toy.make(axis, name, tmp_path, size).on(size)
        for round in (0, 1, 7):
            rows = [graph.neighbours(round, rank) for rank in range(size)]
            assert rows == [graph.neighbours(round, rank) for rank in range(size)]
            assert all(0 <= peer < size and peer != rank for rank, row in enumerate(rows) for peer, _ in row)
            weights = graph.matrix(round)
            assert abs(weights.sum(1) - 1.0).max() < 1e-12
            assert weights.min() >= -1e-12
