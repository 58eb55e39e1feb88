"""`equipoise compare` on small runs: resumed, interrupted, with choices that fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from equipoise.cli.main import main
from equipoise.core.toml import read_toml

SMALL = ["--model", "logistic", "--workers", "2", "--data.limit", "200", "--epochs", "2", "--quiet", "--lr", "0.5"]
CLUSTER = '[[workers]]\ncount = 2\n[links]\nbandwidth = "1 Mbit"\nlatency = "1 ms"\n'


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """The first optimizer imports much of torch: done once here, the forked runs share it."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    return tmp_path


def compare(*words: object) -> int:
    return main(["compare", *SMALL, *map(str, words)])


def stamps(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.glob("*/seed-*/events.jsonl")}


def test_from_choices_to_a_page_and_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--vary",
        "sync=all-reduce,none",
        "--cluster",
        "cluster.toml",
        "--until",
        "accuracy=0.6",
        "--out",
        "c",
    ]
    assert compare(*words, "--seeds", 1) == 0
    said = capsys.readouterr().out
    assert "wins: accuracy=0.6 in" in said
    assert "written: c/report.html" in said
    table = json.loads((here / "c" / "compare.json").read_text())
    assert table["measure"] == "simulated_seconds"
    assert table["sentence"] in said
    assert {row["name"] for row in table["rows"]} == {"all-reduce", "none"}
    assert [run["state"] for run in table["runs"]] == ["done"] * 2
    reached = json.loads((here / "c" / "all-reduce" / "seed-0" / "result.json").read_text())["reached"]
    assert reached["metric"] == "accuracy"
    assert table["sentence"] in (here / "c" / "compare.md").read_text()
    assert len((here / "c" / "compare.csv").read_text().splitlines()) == 3
    page = (here / "c" / "report.html").read_text()
    assert "all-reduce" in page
    assert "{equipoise," in page, "the page cites what the runs used"
    # Finished runs are not repeated: only the new choice and the new seed run.
    before = stamps(here / "c")
    words[1] += ",easgd"
    assert compare(*words, "--seeds", 2) == 0
    after = stamps(here / "c")
    assert len(after) == 6
    assert {name: after[name] for name in before} == before
    # A different recipe or a different cluster is refused.
    assert compare(*words, "--lr", 0.1) == 4
    assert (
        "holds a run of a different recipe: choose another folder with --out\n  lr: 0.5 in the folder, 0.1 now"
        in capsys.readouterr().err
    )
    (here / "cluster.toml").write_text(CLUSTER.replace("1 Mbit", "2 Mbit"))
    assert compare(*words) == 4
    assert "c/cluster.toml differs from " in capsys.readouterr().err


def test_a_choice_that_fails_is_a_row(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The second cannot be built and the third fails when it runs; neither affects the first.
    words = ["--vary", "sync=all-reduce,detag:rounds=0,d2", "--vary", "period=1,1,3", "--list", "--seeds", 1]
    assert compare(*words, "--out", "c") == 0
    said = capsys.readouterr().out
    rows = {row["name"]: row for row in json.loads((here / "c" / "compare.json").read_text())["rows"]}
    assert rows["all-reduce, period 1"]["failed"] == 0
    assert "rounds must be at least 1" in rows["detag:rounds=0, period 1"]["failure"]
    assert "period of 3 means nothing" in rows["d2, period 3"]["failure"]
    assert "failed: " in said
    # If every choice fails, the command fails.
    assert compare("--vary", "lr=1e38", "--weight-decay", 1, "--seeds", 1, "--out", "d") == 3
    assert "--nonfinite skip" in capsys.readouterr().out


def test_rounds_and_period_follow_from_the_links_as_in_training(here: Path) -> None:
    """Of a choice that gives neither, in the recipe of the winner too: on real workers no cluster file decides."""
    (here / "cluster.toml").write_text(CLUSTER.replace("count = 2", "count = 8\nexamples_per_second = 1000"))
    words = ["--workers", 8, "--batch", 8, "--cluster", "cluster.toml", "--seeds", 1]
    assert compare(*words, "--vary", "sync=detag", "--out", "open") == 0
    assert compare(*words, "--vary", "sync=detag:rounds=2,d2", "--out", "said") == 0
    assert compare(*words, "--vary", "sync=detag", "--period", 2, "--out", "period") == 0
    # A step takes 8 ms, and a message of 2 x 650 numbers to both neighbours 91 ms at 0.93 of 1 Mbit.
    for file, expected in {
        "open/detag/seed-0": (2, 2),
        "open": (2, 2),
        "said/detag-rounds=2/seed-0": (2, 1),
        "said/d2/seed-0": (None, 1),
        "period/detag/seed-0": (None, 2),
    }.items():
        found = read_toml(here / file / "recipe.toml")
        assert (found["sync"].get("rounds"), found["period"]["steps"]) == expected, file


def test_half_done_runs_are_resumed(here: Path) -> None:
    words = ["--vary", "sync=all-reduce", "--seeds", 1, "--out", "c", "--checkpoint-every", 2]
    assert compare(*words) == 0
    folder = here / "c" / "all-reduce" / "seed-0"
    before = json.loads((folder / "result.json").read_text())
    (folder / "result.json").unlink()
    assert compare(*words) == 0
    assert json.loads((folder / "result.json").read_text())["params_sha256"] == before["params_sha256"]
    assert '"resume"' in (folder / "events.jsonl").read_text()


def test_one_display_over_all_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in SMALL if word != "--quiet"]
    assert main(["compare", *words, "--vary", "sync=none", "--seeds", "1", "--out", "c"]) == 0
    assert "1/1  none, seed 0: accuracy 0." in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["compare", *words, "--vary", "sync=none,all-reduce", "--seeds", "1", "--out", "c"]) == 0
    said = capsys.readouterr().err
    assert "1 of 2 runs are already done" in said
    assert "2 of 2" in said


def test_one_target_and_no_torchrun(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "a.toml").write_text("until = 'loss=1'")
    (here / "b.toml").write_text("until = 'loss=2'")
    assert compare("a.toml", "b.toml", "--out", "c") == 2
    assert "must share one target" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert compare("--vary", "lr=1", "--out", "c") == 2
    assert "without torchrun" in capsys.readouterr().err


def test_processes(here: Path) -> None:
    assert compare("--vary", "period=1,2", "--seeds", 1, "--processes", "--until", "loss=2", "--out", "c") == 0
    table = json.loads((here / "c" / "compare.json").read_text())
    assert table["measure"] == "seconds"
    assert all(row["reached"] == 1 for row in table["rows"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to compare"),
        (["--vary", "lr=1", "--seeds", "x"], "--seeds x: takes a whole number"),
        (["--vary", "lr=1", "--jobs", "0"], "--jobs 0: takes a whole number"),
        (["--vary", "lr=1", "--processes", "--cluster", "cluster.toml"], "choose one"),
        (["--vary", "lr=1", "--cluster", "nowhere.toml"], "nowhere.toml: no such file"),
        (["--vary", "lr=1", "--until", "error=1", "--out", "x"], "write accuracy=0.85 or loss=0.3"),
        (["nowhere.toml"], "nowhere.toml: no such file"),
    ],
)
def test_mistakes_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*words) == 2
    assert message in capsys.readouterr().err


def command(words: list[str], said: Path) -> None:
    """Target of a process that runs the command and prints to a file."""
    with said.open("w") as sys.stdout:
        code = main(words)
    os._exit(code)


def test_an_interrupt_leaves_what_the_same_command_finishes(here: Path) -> None:
    words = ["compare", *SMALL, "--vary", "sync=all-reduce,d-psgd", "--seeds", "1", "--jobs", "1", "--out", "c"]
    words += ["--epochs", "40", "--checkpoint-every", "5"]
    process = multiprocessing.get_context("fork").Process(target=command, args=(words, here / "said"))
    process.start()
    events = here / "c" / "all-reduce" / "seed-0" / "events.jsonl"
    deadline = time.monotonic() + 60
    while not (events.exists() and '"checkpoint"' in events.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert "stopped with 0 of 2 runs done; to continue, repeat the command with --out c" in (here / "said").read_text()
    assert not (here / "c" / "d-psgd").exists()
    assert main(words) == 0
    assert '"resume"' in events.read_text()
    undisturbed = ["compare", *SMALL, "--vary", "sync=all-reduce", "--seeds", "1", "--epochs", "40", "--out", "d"]
    assert main(undisturbed) == 0
    first, second = (
        json.loads((here / name / "all-reduce" / "seed-0" / "result.json").read_text())["params_sha256"]
        for name in "cd"
    )
    assert first == second
