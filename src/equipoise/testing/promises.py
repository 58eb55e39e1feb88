"""What every method promises, one function each. They raise AssertionError, and need no test framework.

Each takes a method as a user would build it, trains the toy problem with it, and writes to temporary folders alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..comm.membership import Elasticity
from ..comm.virtual_membership import Change
from ..config.citations import entries
from ..config.defaults import chosen_batch, chosen_period
from ..config.registry import name_of
from ..core.errors import UserError
from ..core.method import Configurable, Method
from ..data.source import Source
from ..launch.start import spawn
from ..loop.job import Job, Length
from ..loop.position import Position
from ..loop.train import Run, run_job
from ..loop.worker import Worker
from ..order.base import Order
from ..sync.base import Sync
from ..sync.none import NoSync
from ..topology.base import Topology
from ..wire.base import Wire
from . import toy

COUNTED = ("steps", "samples", "rounds", "messages", "bytes")
BITS = ("params_sha256", *COUNTED, "consensus")

_references: dict[tuple[type, str], dict[str, Any]] = {}


def reference(method: Configurable) -> dict[str, Any]:
    """The result of an undisturbed run on virtual workers, trained once for all promises."""
    key = type(method), repr(method)
    if key not in _references:
        _references[key] = toy.train(method).result
    return _references[key]


# -- what it says of itself --------------------------------------------------------------------------------------------
def check_metadata(method: Configurable) -> None:
    """It has a name for the command line, one line of help, and a docstring."""
    cls = type(method)
    metadata = getattr(cls, "metadata", None)
    assert metadata is not None, f"{cls.__name__}: add `metadata = Metadata(name=..., help=...)`"
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", metadata.name), f"{metadata.name!r}: small letters and hyphens"
    assert name_of(method) == metadata.name
    assert metadata.help, f"{cls.__name__}: one line of help"
    assert "\n" not in metadata.help, f"{cls.__name__}: one line of help"
    for key in metadata.cites:
        assert key in entries() or key.startswith("@"), f"{key!r}: a key of citations.bib, or a whole BibTeX entry"
    assert "__doc__" in vars(cls), f"{cls.__name__}: a docstring with the equation"
    assert inspect.getdoc(cls), f"{cls.__name__}: a docstring with the equation"


def check_repr(method: Configurable) -> None:
    """It is built again from its repr."""
    again = eval(repr(method), _classes_in(method))
    assert type(again) is type(method), f"{method!r} builds a {type(again).__name__}"
    assert again == method, f"{method!r} builds another one: {again!r}"


def _classes_in(value: Configurable) -> dict[str, Any]:
    """The classes that its repr names: its own, and those of its options."""
    classes: dict[str, Any] = {type(value).__name__: type(value)}
    for option in value.options().values():
        for item in option if isinstance(option, (list, tuple)) else [option]:
            classes |= _classes_in(item) if isinstance(item, Configurable) else {}
    return classes


def check_options(method: Configurable) -> None:
    """Every option has help and refuses values outside its limits, by an error that names it."""
    for field in dataclasses.fields(method):
        assert field.metadata.get("help"), f"{field.name}: pass help= to option()"
        for bad in _nonsense(field):
            change = {field.name: bad}
            with raises(UserError, field.name):
                dataclasses.replace(method, **change)


def _nonsense(field: dataclasses.Field[Any]) -> list[Any]:
    limits, bad = field.metadata, [object()]
    if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
        bad.append(math.nan)
    for key, step in (("least", -1), ("above", 0), ("most", 1), ("below", 0)):
        if limits[key] is not None:
            bad.append(limits[key] + step)
    if limits["choices"] is not None:
        bad.append("no such choice")
    return bad


@contextmanager
def raises(kind: type[Exception], word: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        if word not in str(error):
            raise AssertionError(f"the error does not say {word!r}: {error}") from error
    else:
        raise AssertionError(f"nothing was refused: a {kind.__name__} that says {word!r} is needed")


# -- what its runs give ------------------------------------------------------------------------------------------------
def check_trains(method: Configurable) -> None:
    """It trains the toy problem."""
    before = nn.functional.cross_entropy(toy.model().eval()(toy.INPUTS), toy.TARGETS).item()
    result = _train(method, steps=48).result
    assert result["steps"] == 48
    after = result["models"]["mean"]["loss"]
    assert after < 0.65 * before, f"the loss fell from {before:.3f} to {after:.3f} only"


def check_deterministic(method: Configurable) -> None:
    """The same seed gives the same bits, another one does not."""
    expected = reference(method)
    same(_train(method).result, expected, BITS)
    assert _train(method, seed=1).result["params_sha256"] != expected["params_sha256"], "the seed changes nothing"


def check_processes(method: Configurable) -> None:
    """Processes give the bits of virtual workers, or the same sums where real time decides (`exact = False`)."""
    same_as_virtual(method, _train(method, virtual=False).result)


def same_as_virtual(method: Configurable, result: dict[str, Any]) -> None:
    same(result, reference(method), BITS if method.exact else ("steps", "rounds", "messages", "bytes"))


def check_resume(method: Configurable) -> None:
    """Stopped in the middle of the second epoch, `eq.train` goes on to the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        stopped = _train(method, steps=11, out=folder, checkpoint_every=1000).result
        resumed = _train(method, out=folder, checkpoint_every=1000, resume=True).result
    assert stopped["samples"] < resumed["samples"]
    same(resumed, reference(method), (*BITS, "models"))


def check_attach(method: Configurable) -> None:
    """A user's own loop with `eq.attach` and `eq.Sampler` gives the bits of `eq.train`."""
    same(toy.attach(method), reference(method), BITS)


def check_attach_resume(method: Configurable) -> None:
    """So it does when it writes a checkpoint in the middle of the first epoch, ends, and is started again."""
    with tempfile.TemporaryDirectory() as folder:
        first = toy.attach(method, steps=5, log=Path(folder))
        resumed = toy.attach(method, log=Path(folder))
    assert first["samples"] < resumed["samples"]
    same(resumed, reference(method), BITS)


def check_one_worker(method: Configurable) -> None:
    """One worker is plain SGD: nothing is sent, and no example is lost."""
    if method.axis in ("partition", "order", "batch"):
        # These decide which examples come when, also for one worker.
        result = _train(method, workers=1, steps=None, epochs=1).result
        assert result["samples"] == toy.EXAMPLES
        assert result["bytes"] == 0
    else:
        plain = _train(NoSync(), workers=1).result
        same(_train(method, workers=1).result, plain, ("params_sha256", "samples", "bytes"))


def check_membership(method: Method) -> None:
    """Workers are lost and join; the others go on, every example of an epoch is taken once, and the loss falls."""
    job = _job(method, Elasticity(2, 5, snapshot_every=2))
    job.length = Length(epochs=3)
    job.changes = [
        Change(1, "lose", step=5),
        Change(4, "join", step=8),
        Change(0, "lose", step=12),
        Change(0, "join", step=16),
    ]
    taken: list[tuple[int, int, int, list[int]]] = []  # generation, step, epoch and examples of a batch
    original = Worker.step

    def step(worker: Worker) -> float:
        loss = original(worker)
        assert worker.comm.membership is not None
        generation = worker.comm.membership.roster.generation
        taken.append((generation, worker.clock.step, worker.clock.epoch, worker.indices.tolist()))
        shares = worker.sync.mean_shares()
        assert not shares or (len(shares) == worker.comm.size and abs(sum(shares) - 1.0) < 1e-9), shares
        return loss

    Worker.step = step  # type: ignore[assignment,method-assign]
    try:
        result = run_job(job, toy.WORKERS, virtual=True, cluster=None, deterministic=True, timeout=60.0).result
    finally:
        Worker.step = original  # type: ignore[method-assign]
    history = result["membership"]
    assert [row["members"] for row in history] == [[0, 2, 3], [0, 2, 3, 4], [2, 3, 4], [0, 2, 3, 4]], history
    assert [row["step"] for row in history] == [4, 8, 10, 16], history  # what follows the last agreed step is dropped
    # What was taken after the step at which the next generation began was taken back.
    ends = {row["generation"] - 1: row["step"] for row in history}
    agreed = [row for row in taken if row[1] <= ends.get(row[0], row[1])]
    for epoch in range(3):
        visited = sorted(index for row in agreed if row[2] == epoch for index in row[3])
        assert visited == list(range(toy.EXAMPLES)), f"epoch {epoch} does not visit every example once"
    assert result["samples"] == 3 * toy.EXAMPLES
    before = nn.functional.cross_entropy(toy.model().eval()(toy.INPUTS), toy.TARGETS).item()
    after = result["models"]["mean"]["loss"]
    assert after < 0.95 * before, f"the loss fell from {before:.3f} to {after:.3f} only"


def _train(method: Configurable, **changes: Any) -> Run:
    """Evaluated at the end alone. The reference is evaluated at every epoch, which must not change anything."""
    return toy.train(method, evaluate_every=1000, **changes)


def same(result: dict[str, Any], expected: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        assert result[key] == expected[key], f"{key} differs: {result[key]} is not {expected[key]}"


# -- its state and its cost --------------------------------------------------------------------------------------------
def check_state(method: Method) -> None:
    """What `state_dict` gives is plain, complete, and not an alias of what the worker goes on changing."""
    job = _job(method)

    def loop(comm: Any) -> None:
        worker = Worker(job, comm)
        bound: Method = getattr(worker, method.axis)
        for _ in range(5):
            _step(worker)
        state = bound.state_dict()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.pt"
            torch.save(state, path)
            _step(worker)
            stored = torch.load(path, weights_only=True)
        assert _equal(state, stored), "the state changed after it was given out"
        bound.load_state_dict(stored)
        assert _equal(bound.state_dict(), stored), "the state is not what was loaded"
        with raises(UserError, "another method"):
            bound.load_state_dict({"state of another method": 1})

    spawn(loop, toy.WORKERS, virtual=True)


def check_every_example(method: Order) -> None:
    """Every epoch of an order visits each example of the worker's block once."""
    job = _job(method)

    def loop(comm: Any) -> None:
        worker = Worker(job, comm)
        assert isinstance(worker.position, Position)
        for epoch in range(3):
            positions = worker.position.positions
            assert positions is not None
            once = sorted(positions.tolist()) == list(range(len(worker.position.block)))
            assert once, f"epoch {epoch} of rank {comm.rank} does not visit every example once: {positions}"
            while worker.position.steps_left:
                worker.step()
            _begin_epoch(worker)

    spawn(loop, 2, virtual=True)


def check_cost(method: Sync | Wire) -> None:
    """The ledger equals the cost that the sync declares: step by step, rank by rank, on even and odd world sizes."""
    job = _job(method)

    def loop(comm: Any) -> None:
        worker = Worker(job, comm)
        for _ in range(13):
            messages, sent, rounds = comm.ledger.messages, comm.ledger.bytes, worker.clock.rounds
            _step(worker)
            counted = comm.ledger.messages - messages, comm.ledger.bytes - sent
            declared = worker.sync.cost(worker.context.model_size, comm.rank, comm.size, worker.clock.due, rounds)
            where = f"rank {comm.rank} of {comm.size}, step {worker.clock.step}"
            assert counted == declared, f"{where}: sent {counted} (messages, bytes), declared {declared}"

    for workers in (2, 3, 4, 5):
        spawn(loop, workers, virtual=True)


def _job(method: Method, elastic: Elasticity | None = None) -> Job:
    chosen = toy.choices(method)
    chosen |= {"batch": chosen_batch(chosen["batch"]), "period": chosen_period(chosen.get("period"))}
    source = Source((toy.INPUTS, toy.TARGETS))
    return Job(toy.model, nn.CrossEntropyLoss(), source, Length(steps=100), toy.optimizer, elastic=elastic, **chosen)


def _step(worker: Worker) -> None:
    if worker.position.steps_left == 0:
        _begin_epoch(worker)
    worker.step()


def _begin_epoch(worker: Worker) -> None:
    worker.clock.epoch += 1
    worker.position.begin(worker.clock.epoch)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return set(a) == set(b) and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b) or (a != a and b != b)  # nan too


# -- graphs ------------------------------------------------------------------------------------------------------------
def check_graph(topology: Topology, sizes: tuple[int, ...] = (1, 2, 4, 8, 16)) -> None:
    """A pure function of the round: the same peers whenever it is asked, and weights of each worker that sum to one."""
    for size in sizes:
        graph = topology.on(size)
        for round in (0, 1, 7):
            rows = [graph.neighbours(round, rank) for rank in range(size)]
            assert rows == [graph.neighbours(round, rank) for rank in range(size)]
            assert all(0 <= peer < size and peer != rank for rank, row in enumerate(rows) for peer, _ in row)
            weights = graph.matrix(round)
            assert abs(weights.sum(1) - 1.0).max() < 1e-12, f"weights of round {round} on {size} workers: {weights}"
            assert weights.min() >= -1e-12


# -- which of them a method must keep ----------------------------------------------------------------------------------
SAYS = (check_metadata, check_repr, check_options)
TRAINS = (
    check_trains,
    check_deterministic,
    check_processes,
    check_resume,
    check_attach,
    check_attach_resume,
    check_one_worker,
)
PROMISES: dict[str, tuple[Callable[[Any], None], ...]] = {
    "partition": (*SAYS, *TRAINS),
    "order": (*SAYS, *TRAINS, check_state, check_every_example, check_membership),
    "batch": (*SAYS, *TRAINS, check_state),
    "period": (*SAYS, *TRAINS, check_state),
    "topology": (*SAYS, check_graph),
    "sync": (*SAYS, *TRAINS, check_state, check_cost, check_membership),
    "wire": (*SAYS, *TRAINS, check_state, check_cost, check_membership),
}


def check_method(method: Configurable) -> None:
    """Everything that a method on its axis promises; the first that it breaks raises an AssertionError."""
    if method.axis not in PROMISES:
        raise UserError(f"{type(method).__name__} is on no axis that has promises: {', '.join(PROMISES)}")
    for promise in PROMISES[method.axis]:
        promise(method)
