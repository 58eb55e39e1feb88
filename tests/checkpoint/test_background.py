"""Checkpoints are written while the loop goes on: exact, agreed, and told if they fail."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.checkpoint import writer
from equipoise.checkpoint.store import available
from equipoise.core.copied import copied
from equipoise.core.errors import CheckpointError
from equipoise.loop.progress import Lockstep

from ..comm.workers import both
from ..loop.problem import DATA, adam, momentum, plain, train

HOW: dict[str, Any] = {"workers": 2, "batch": 6, "evaluate_every": 99}


def test_the_loop_goes_on_and_the_file_holds_the_step_at_which_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is written before both workers are two steps further."""
    further, original, calls = threading.Event(), writer._write_worker, []

    def slow(*args: Any) -> None:
        assert further.wait(30), "the loop waits for its checkpoint"
        original(*args)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 13:
            assert not available(tmp_path / "run")
            further.set()
        return cross_entropy(outputs, targets)

    monkeypatch.setattr(writer, "_write_worker", slow)
    how = {"optimizer": adam, "steps": 9, "sync": eq.sync.DiLoCo(), "period": 2, **HOW}
    whole = eq.train(plain, loss, DATA, out=tmp_path / "run", checkpoint_every=4, keep=9, **how)
    assert [path.name for path in available(tmp_path / "run")] == ["step-4", "step-8", "step-9"]
    saved = [event for event in whole.events if event["event"] == "checkpoint"]
    assert [(event["path"], event["step"]) for event in saved] == [(f"step-{n}", n) for n in (4, 8, 9)]
    again = eq.train(plain, cross_entropy, DATA, out=tmp_path / "run", resume=4, **how)
    assert again.result["params_sha256"] == whole.result["params_sha256"]


def full(path: Path, rank: int, state: Any) -> None:
    if rank == 1:
        raise OSError(errno.ENOSPC, "No space left on device")


@both
def test_a_failed_write_is_told_where_workers_meet(
    virtual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the next checkpoint is due, on all workers alike."""
    monkeypatch.setattr(writer, "_write_worker", full)
    monkeypatch.setattr(Lockstep, "step_passed", lambda self, every: self.steps == every)
    with pytest.raises(CheckpointError, match=r"cannot write .*step-3.*: No space left on device; free space"):
        train(plain(), momentum, steps=10**5, out=tmp_path / "run", checkpoint_every=3, virtual=virtual, **HOW)
    assert not available(tmp_path / "run")


def test_an_own_loop_is_told_at_its_next_checkpoint_or_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop(comm: Any, folder: Path, checkpoints: int) -> None:
        model = plain()
        optimizer = momentum(model.parameters())
        with eq.attach(model, optimizer, log=folder) as together:
            for _ in range(checkpoints):
                optimizer.zero_grad()
                cross_entropy(model(DATA[0]), DATA[1]).backward()
                optimizer.step()
                together.checkpoint()

    eq.spawn(lambda comm: loop(comm, tmp_path / "good", 2), 2, virtual=True)
    assert [path.name for path in available(tmp_path / "good")] == ["step-1", "step-2"]
    monkeypatch.setattr(writer, "_write_worker", full)
    for checkpoints in (1, 2):
        with pytest.raises(CheckpointError, match=r"cannot write .*step-1.*: No space left on device"):
            eq.spawn(lambda comm, n=checkpoints: loop(comm, tmp_path / f"full-{n}", n), 2, virtual=True)


def test_one_that_was_moved_aside_for_a_newer_one_that_never_came_is_found(tmp_path: Path) -> None:
    train(plain(), momentum, steps=2, out=tmp_path / "run", keep=1, **HOW)
    top = tmp_path / "run" / "checkpoints"
    (top / "step-2").rename(top / ".step-2.old")
    assert [path.name for path in available(tmp_path / "run")] == ["step-2"]


def test_a_copy_writes_over_an_older_one() -> None:
    value = {"a": torch.arange(4.0), "b": [torch.ones(2, 2).T, 3], "c": (None, "x")}
    first = copied(value, None)
    value["a"] += 1
    assert first["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    second = copied(value, first)
    assert second["a"] is first["a"]
    assert second["a"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert (second["b"][1], second["c"]) == (3, (None, "x"))
    assert copied({"a": torch.ones(5)}, first)["a"].tolist() == [1.0] * 5
