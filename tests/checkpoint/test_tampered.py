"""Files with the right checksum and the wrong contents: refused in one line, or the run goes on; never a crash."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.core.errors import CheckpointError
from equipoise.data.source import Source
from equipoise.launch.start import spawn
from equipoise.loop import state as loop_state
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

from ..loop.problem import DATA, momentum, plain

MISSING = object()
ODD = {"none": None, "list": [1, 2], "negative": -5, "huge": 10**40, "missing": MISSING}

# What may be otherwise without harm: torch's own objects fill in what is missing, and seconds are for the eye.
FREE = ("optimizer.param_groups.0.", "optimizer.state.", "scheduler", "clock.", "ledger.")


def job() -> Job:
    return Job(
        model=plain,
        loss=torch.nn.functional.cross_entropy,
        train=Source(DATA),
        length=Length(steps=9),
        optimizer=momentum,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3),
        order=eq.order.PairBalance(),
        batch=eq.batch.NormTest(start=4, most=6),
        period=eq.period.Every(2),
        sync=eq.sync.DiLoCo(),
        wire=eq.wire.Int8(block=16),
    )


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every table, every entry of one, and the entries of short lists."""
    yield above
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if len(entries := list(entries)) < 20 or isinstance(value, dict):
        for key, item in entries:
            yield from places(item, (*above, key))


def changed(state: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at one place, or without it."""
    if not place:
        return new
    state = copy.copy(state)
    if new is MISSING and len(place) == 1:
        del state[place[0]]
    else:
        state[place[0]] = changed(state[place[0]], place[1:], new)
    return state


def at(state: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        state = state[key]
    return state


def outcome(worker: Worker) -> str:
    try:
        loop_state.load_worker(worker, Path("step-3"))
    except CheckpointError:
        return "refused"
    return "loaded"


def test_every_place_of_a_checkpoint_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 gets a changed file. Where it loads it, both go on for a step."""
    given: dict[int, Any] = {}
    touched = []
    original = loop_state.put_back
    monkeypatch.setattr(loop_state, "read_manifest", lambda path: {"workers": 2})
    monkeypatch.setattr(loop_state, "read_worker", lambda path, manifest, rank: given[rank])
    monkeypatch.setattr(loop_state, "put_back", lambda *args: (touched.append(1), original(*args)))
    work = job()

    def loop(comm: Any) -> dict[str, list[str]]:
        fresh = worker = Worker(work, comm)
        for _ in range(3):
            worker.step()
        whole = given[comm.rank] = copy.deepcopy(loop_state.state_of(worker))
        seen: dict[str, list[str]] = {"refused": [], "loaded": []}
        for place in places(whole):
            for name, odd in ODD.items():
                if odd is MISSING and (not place or not isinstance(at(whole, place[:-1]), dict)):
                    continue
                if comm.gather_objects(bool(touched or fresh is worker))[0]:
                    touched.clear()
                    fresh = Worker(work, comm)
                said = ""
                if comm.rank == 0:
                    given[0] = changed(whole, place, odd)
                    said = outcome(fresh)
                    seen[said].append(f"{'.'.join(map(str, place))} {name}")
                if comm.gather_objects(said)[0] == "loaded":
                    assert comm.rank == 0 or outcome(fresh) == "loaded", "its own file is as it was"
                    fresh.step()
        return seen

    seen = spawn(loop, 2, virtual=True)[0]
    assert len(seen["refused"]) > 600
    assert [row for row in seen["loaded"] if not row.startswith(FREE)] == []
