import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.core.toml import read_toml

from .conftest import SMALL, Command


def sha(folder: Path) -> str:
    return json.loads((folder / "result.json").read_text())["params_sha256"]


def test_a_longer_run_is_the_same_as_one_that_never_ended(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 30, "--out", "uninterrupted", "--momentum", 0.9, *SMALL).code == 0
    assert command("train", "--steps", 12, "--out", "parts", "--momentum", 0.9, *SMALL).code == 0
    said = command("resume", "parts", "--steps", 30, "--quiet")
    assert said.code == 0, said.err
    assert sha(tmp_path / "parts") == sha(tmp_path / "uninterrupted")
    assert read_toml("parts/recipe.toml")["steps"] == 30


def test_processes_continue_a_run_of_virtual_workers(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 12, "--out", "uninterrupted", *SMALL).code == 0
    assert command("train", "--steps", 5, "--out", "parts", *SMALL).code == 0
    said = command("resume", "parts", "--steps", 12, "--no-virtual", "--deterministic", "--quiet")
    assert said.code == 0, said.err
    assert sha(tmp_path / "parts") == sha(tmp_path / "uninterrupted")


def test_a_finished_run_says_so(command: Command) -> None:
    assert command("train", "--epochs", 1, "--out", "run", *SMALL).code == 0
    for words in ([], ["--epochs", 1], ["--steps", 3]):
        said = command("resume", "run", *words)
        assert said.code == 0
        assert said.out.startswith("run is finished: it has 1 epoch, 23 steps; to continue"), said


def test_a_length_below_what_a_stopped_run_has_says_so(command: Command, tmp_path: Path) -> None:
    assert command("train", "--epochs", 2, "--out", "run", *SMALL).code == 0
    (tmp_path / "run" / "result.json").unlink()  # as a run that was stopped leaves it
    for flag in ("--steps", "--epochs"):
        said = command("resume", "run", flag, 1)
        assert said.code == 0
        assert said.out == f"run is at step 46 in epoch 2: to continue, give a greater length than {flag} 1\n"
    assert command("resume", "run", "--quiet").code == 0
    assert (tmp_path / "run" / "result.json").is_file(), "its own length is not below what it has"


def test_from_an_earlier_step(command: Command, tmp_path: Path) -> None:
    flags = ("--checkpoint-every", 5, "--steps", 10, "--out", "run")
    assert command("train", *flags, *SMALL).code == 0
    before = sha(tmp_path / "run")
    said = command("resume", "run", "--from", 5, "--quiet")
    assert said.code == 0, said.err
    assert sha(tmp_path / "run") == before
    assert "step-10 is now set-aside-step-10" in said.err
    said = command("resume", "run", "--from", 7)
    assert said.code == 4
    assert "run has no checkpoint of step 7; there are: step-5, step-10" in said.err
    assert "takes the number of a step" in command("resume", "run", "--from", "soon").err


def test_another_number_of_workers(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 8, "--out", "run", *SMALL).code == 0
    said = command("resume", "run", "--workers", 3, "--epochs", 2, "--quiet")
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["workers"]) == 3
    assert result["samples"] == 2 * 1438
    assert read_toml("run/recipe.toml")["workers"] == 3


def test_other_choices_are_refused_with_a_diff(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 4, "--out", "run", *SMALL).code == 0
    before = (tmp_path / "run" / "recipe.toml").read_text()
    said = command("resume", "run", "--lr", 0.5, "--batch", 64, "--steps", 9)
    assert said.code == 4
    assert said.err.splitlines() == [
        "equipoise: the checkpoint belongs to another recipe:",
        "  batch.size: 32 in the checkpoint, 64 now",
        "  lr: 0.1 in the checkpoint, 0.5 now",
    ]
    assert (tmp_path / "run" / "recipe.toml").read_text() == before


def test_folders_without_a_run(command: Command, tmp_path: Path) -> None:
    said = command("resume", "nowhere")
    assert said.code == 2
    assert "nowhere is not the folder of a run: it has no recipe.toml" in said.err
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recipe.toml").write_text("workers = 2\n")
    said = command("resume", "empty")
    assert said.code == 4
    assert "empty has no checkpoint to resume from" in said.err


def test_a_schedule_continues_where_it_was(command: Command, tmp_path: Path) -> None:
    flags = ("--schedule", "cosine", "--warmup", 0.1, "--checkpoint-every", 10, "--epochs", 2)
    assert command("train", "--out", "uninterrupted", *flags, *SMALL).code == 0
    before = sha(tmp_path / "uninterrupted")
    said = command("resume", "uninterrupted", "--from", 40, "--quiet")
    assert said.code == 0, said.err
    assert sha(tmp_path / "uninterrupted") == before


@pytest.mark.timeout(180)  # importing torch in the new process takes long on a busy machine
def test_sigterm_leaves_a_checkpoint_from_which_the_run_ends_as_if_undisturbed(
    command: Command, tmp_path: Path
) -> None:
    flags = ["--model", "logistic", "--workers", "2", "--period", "25", "--steps", "800", "--log-every", "20"]
    flags += ["--checkpoint-every", "100000", "--evaluate-every", "1000"]
    run = tmp_path / "run"
    words = [sys.executable, "-m", "equipoise", "train", *flags, "--deterministic", "--out", str(run)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    events = run / "events.jsonl"
    deadline = time.monotonic() + 100
    while not (events.exists() and '"event": "step"' in events.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 143, err
    line = out.splitlines()[-1]
    assert line.startswith("stopped at step ")
    assert line.endswith(f"; to continue: equipoise resume {run}")
    assert not (run / "result.json").exists()
    assert any((run / "checkpoints").glob("step-*"))
    said = command("resume", run, "--virtual", "--quiet")
    assert said.code == 0, said.err
    assert command("train", *flags, "--virtual", "--quiet", "--out", "undisturbed").code == 0
    assert sha(run) == sha(tmp_path / "undisturbed")
