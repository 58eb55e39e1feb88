"""Failures of workers, seen from the terminal."""

from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.cli import main as entry
from equipoise.config import build as assemble

from .conftest import Command

FLAGS = ("--model", "logistic", "--workers", 2, "--quiet", "--out", "run", "--steps", 50)


def break_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """A loss that raises, as code of a user might."""
    real, made = assemble.LOSSES["classify"], [0]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        made[0] += 1
        if made[0] > calls:
            raise KeyError("my own mistake")
        return real(outputs, targets)

    monkeypatch.setitem(assemble.LOSSES, "classify", loss)


@pytest.mark.parametrize("kind", ["--virtual", "--no-virtual"])
def test_an_exception_in_a_worker(command: Command, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    break_after(monkeypatch, 20)
    said = command("train", *FLAGS, "--checkpoint-every", 5, kind)
    assert said.code == 3
    first, second, *rest = said.err.splitlines()
    assert first.startswith("equipoise: worker ")
    assert "failed at step " in first
    assert "KeyError: 'my own mistake'" in first
    assert second == "go on from its last checkpoint with: equipoise resume run"
    assert rest[0].startswith("Traceback")
    assert "my own mistake" in rest[-1]


def test_no_hint_where_there_is_no_checkpoint(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    break_after(monkeypatch, 3)
    said = command("train", *FLAGS, "--virtual")
    assert said.code == 3
    assert "equipoise resume" not in said.err


@pytest.mark.parametrize("kind", ["--virtual", "--no-virtual"])
def test_a_loss_that_is_not_finite(command: Command, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(assemble.LOSSES, "classify", lambda outputs, targets: outputs.sum() * float("nan"))
    said = command("train", *FLAGS, kind)
    assert said.code == 3
    assert len(said.err.splitlines()) == 1
    assert "step 1: the loss is nan" in said.err


def test_a_fault_of_our_own(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: Any) -> int:
        raise RuntimeError("oh")

    monkeypatch.setattr(entry, "dispatch", broken)
    said = command("list")
    assert said.code == 1
    assert said.err.startswith("equipoise: RuntimeError: oh (a fault of Equipoise itself")
    assert "Traceback" in said.err


def test_ctrl_c_before_there_are_workers(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(words: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "dispatch", interrupted)
    assert command("list").code == 130


def test_a_stop_has_the_code_of_its_signal(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = assemble.Job

    def stopping(*args: Any, **options: Any) -> Any:
        job = real(*args, **options)
        job.stop.set()  # as the handler of Ctrl-C does
        return job

    monkeypatch.setattr(assemble, "Job", stopping)
    said = command("train", *FLAGS, "--virtual")
    assert said.code == 130
    assert said.out == "stopped at step 1; go on with: equipoise resume run\n"
    assert (tmp_path / "run" / "checkpoints" / "step-1").is_dir()
