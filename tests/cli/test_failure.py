"""Failures of workers, as printed on the terminal."""

from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.cli import main as entry
from equipoise.loop import from_recipe

from .conftest import Command

FLAGS = ("--model", "logistic", "--workers", 2, "--quiet", "--out", "run", "--steps", 50)


def break_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Make the loss raise after so many calls, as user code might."""
    real, made = from_recipe.LOSSES["classify"], [0]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        made[0] += 1
        if made[0] > calls:
            raise KeyError("my own mistake")
        return real(outputs, targets)

    monkeypatch.setitem(from_recipe.LOSSES, "classify", loss)


@pytest.mark.parametrize("kind", ["--virtual", "--no-virtual"])
def test_an_exception_in_a_worker(command: Command, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    break_after(monkeypatch, 20)
    said = command("train", *FLAGS, "--checkpoint-every", 5, kind)
    assert said.code == 3
    first, second, *rest = said.err.splitlines()
    assert first.startswith("equipoise: worker ")
    assert "failed at step " in first
    assert "KeyError: 'my own mistake'" in first
    assert second == "to continue from the last checkpoint: equipoise resume run"
    assert rest[0].startswith("Traceback")
    assert "my own mistake" in rest[-1]


def test_no_hint_where_there_is_no_checkpoint(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    break_after(monkeypatch, 3)
    said = command("train", *FLAGS, "--virtual")
    assert said.code == 3
    assert "equipoise resume" not in said.err


@pytest.mark.parametrize("kind", ["--virtual", "--no-virtual"])
def test_a_loss_that_is_not_finite(command: Command, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(from_recipe.LOSSES, "classify", lambda outputs, targets: outputs.sum() * float("nan"))
    said = command("train", *FLAGS, kind)
    assert said.code == 3
    assert len(said.err.splitlines()) == 1
    assert "step 1: the loss is nan" in said.err


def test_an_internal_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
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
    real = from_recipe.Job

    def stopping(*args: Any, **options: Any) -> Any:
        job = real(*args, **options)
        job.stop.set()  # as the handler of Ctrl-C does
        return job

    monkeypatch.setattr(from_recipe, "Job", stopping)
    said = command("train", *FLAGS, "--virtual")
    assert said.code == 130
    assert said.out == "stopped at step 1; to continue: equipoise resume run\n"
    assert (tmp_path / "run" / "checkpoints" / "step-1").is_dir()
