import json
import os
from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.config.recipe import Recipe
from equipoise.core.toml import read_toml

from .conftest import SMALL, Command

KEYS = {
    *("steps", "samples", "epochs", "rounds", "messages", "bytes", "seconds", "simulated_seconds"),
    *("models", "consensus", "params_sha256", "workers"),
}


def test_a_run_leaves_recipe_events_and_result(command: Command, tmp_path: Path) -> None:
    said = command("train", "--data", "digits", "--epochs", 1, *SMALL)
    assert said.code == 0, said.err
    folder = tmp_path / "runs" / "digits-all-reduce-1"
    result = json.loads((folder / "result.json").read_text())
    assert set(result) >= KEYS
    assert result["steps"] == 23
    assert result["models"]["mean"]["accuracy"] > 0.3
    assert [row["worker"] for row in result["workers"]] == [0, 1]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {event["event"] for event in events} >= {"start", "step", "evaluate", "checkpoint", "end"}
    recipe = read_toml(folder / "recipe.toml")
    assert (recipe["workers"], recipe["model"]["name"], recipe["sync"]["name"]) == (2, "logistic", "all-reduce")
    assert set(recipe["versions"]) == {"equipoise", "torch", "numpy", "python"}
    for word in ("steps", "examples", "rounds", "messages", "bytes", "seconds", "mean model", "consensus"):
        assert f"\n{word}" in "\n" + said.out
    assert result["params_sha256"] in said.out
    assert "runs/digits-all-reduce-1" in said.out
    assert said.err == ""


def test_the_next_free_folder(command: Command, tmp_path: Path) -> None:
    for _ in range(2):
        assert command("train", "--steps", 2, "--period", 2, *SMALL).code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [f"digits-periodic-average-{n}" for n in (1, 2)]


def test_the_dumped_recipe_gives_the_same_run(command: Command, tmp_path: Path) -> None:
    flags = ("--steps", 5, "--batch", "8,24", "--partition", "sorted", "--partition.shuffled", 0.5, "--seed", 3)
    assert command("train", "--out", "a", *flags, *SMALL).code == 0
    said = command("train", "a/recipe.toml", "--out", "b", "--quiet")
    assert said.code == 0, said.err
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in "ab")
    assert first["params_sha256"] == second["params_sha256"]
    assert Recipe.load("a/recipe.toml").flat() | {"out": "b"} == Recipe.load("b/recipe.toml").flat()


def test_processes_and_virtual_workers_agree(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 6, "--out", "a", "--period", 2, *SMALL).code == 0
    said = command("train", "a/recipe.toml", "--no-virtual", "--deterministic", "--out", "b", "--quiet")
    assert said.code == 0, said.err
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in "ab")
    assert first["params_sha256"] == second["params_sha256"]


def test_progress_goes_to_stderr(command: Command) -> None:
    said = command("train", "--steps", 2, "--virtual", "--workers", 2)
    assert "evaluated" in said.err
    assert "evaluated" not in said.out


def test_dry_run_writes_nothing(command: Command, tmp_path: Path) -> None:
    said = command("train", "--dry-run", "--workers", 4, "--period", 4, "--model.hidden", 64)
    assert said.code == 0, said.err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "said.toml").write_text(said.out)
    table = read_toml(tmp_path / "said.toml")
    assert table["model"] == {"name": "mlp", "hidden": [64]}
    cost = said.out.split("\n# ", 1)[1]
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    assert f"{parameters:,} of 4 bytes" in cost
    assert "12 at the initial batch sizes" in cost
    # All-reduce over N = 4 workers: each sends 2 (N - 1) messages; together they send 2 (N - 1) vectors.
    assert f"24 messages, {6 * parameters * 4:,} bytes" in cost
    assert f"6 messages, {6 * parameters:,} bytes" in cost
    assert "0 messages, 0 bytes" in cost


def test_dry_run_says_what_a_wire_saves(command: Command) -> None:
    plain, coded = (
        command("train", "--dry-run", "--workers", 2, "--model", "logistic", "--period", 4, "--wire", wire)
        for wire in ("float32", "bfloat16")
    )
    parameters = 64 * 10 + 10
    # Two workers: each sends half of its vector and half of the sum; through the wire also its weight, 8 bytes.
    assert f"4 messages, {2 * parameters * 4:,} bytes" in plain.out
    assert "wire " not in plain.out.split("\n# ", 1)[1]
    assert f"4 messages, {2 * (parameters * 2 + 8):,} bytes" in coded.out
    assert f"{parameters * 4 / (parameters * 2 + 8):.3g} times fewer bytes than {2 * parameters * 4:,}" in coded.out


def test_dry_run_refuses_a_wire_that_the_run_refuses(command: Command) -> None:
    for dry in ([], ["--dry-run"]):
        said = command("train", "--virtual", "--workers", 4, "--sync", "sgp", "--wire", "top-k", "--steps", 2, *dry)
        assert said.code == 2
        assert "SGP cannot send through wire top-k" in said.err


@pytest.mark.parametrize(
    ("sync", "policy"),
    [("all-reduce", "stop"), ("mgrawa", "stop"), ("lgrawa", "leave-out"), ("gossip-pga", "stop")],
)
def test_dry_run_forecasts_what_the_ledger_counts(sync: str, policy: str, command: Command, tmp_path: Path) -> None:
    how = ("--steps", 4, "--out", "run", "--sync", sync, "--nonfinite", policy)
    assert command("train", *how, *SMALL).code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    said = command("train", "run/recipe.toml", "--dry-run")
    assert f"{result['messages'] / 4:,g} messages, {result['bytes'] // 4:,} bytes" in said.out


def test_a_cluster_decides_workers_and_is_simulated(command: Command, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[[workers]]\nspeed = 2.0\n[[workers]]\n[links]\nlatency = "1 ms"\n')
    said = command("train", "--cluster", "cluster.toml", "--steps", 3, "--out", "run", "--quiet", "--model", "logistic")
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["workers"]) == 2
    assert result["simulated_seconds"] > 0.002
    assert "simulated seconds" in said.out


def test_a_topology_that_nobody_uses_is_noted(command: Command) -> None:
    said = command("train", "--dry-run", "--topology", "ring", "--sync", "all-reduce")
    assert said.code == 0
    assert said.err == "equipoise: note: sync all-reduce does not use a topology: --topology ring changes nothing\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--workers", 2000, "--virtual"], 2, "2000 workers but only 1438 examples: use at most 1438 workers"),
        (["--cluster", "missing.toml"], 2, "missing.toml: no such file"),
        (["missing.toml"], 2, "missing.toml: no such file"),
        (["--out", "/proc/nobody/writes/here"], 2, "cannot write to /proc/nobody/writes/here"),
        (["--model", "lstm"], 2, "lstm takes words, but the data has inputs of shape (1, 8, 8)"),
        (["--sync.weigths", "size"], 2, "unknown option sync.weigths of sync all-reduce: did you mean 'weights'?"),
        (["--order.x", 1], 2, "unknown option order.x of order reshuffle: reshuffle has no options"),
        (["--sync", "all-reduce", "--period", 4], 2, "AllReduce communicates at every step"),
        (["--period", 0], 2, "Every(steps=0): steps must be at least 1"),
        (["--batch", "8,8,8", "--workers", 2, "--virtual"], 2, "batch.size lists 3 sizes for 2 workers"),
        (["--data", "text"], 2, "text needs your own files: pass --data.path"),
        (["--budget", "10 parsecs"], 2, "budget = '10 parsecs': write a number and one of"),
        (["--nesterov"], 2, "--nesterov needs a momentum"),
        (["--momentum", 0.9, "--optimizer", "adam"], 2, "--momentum belongs to sgd"),
        (["--slow", "1,fast"], 2, "takes a number for each worker"),
        (["--partition", "from-file", "--virtual"], 2, "partition from-file needs a file"),
    ],
)
def test_invalid_requests_are_refused_and_leave_no_folder(
    command: Command, tmp_path: Path, words: list[object], code: int, message: str
) -> None:
    said = command("train", *words)
    assert said.code == code
    first, *rest = said.err.splitlines()
    assert message in first
    assert first.startswith("equipoise: ")
    assert rest == []
    assert list(tmp_path.glob("runs/*")) == []


def test_broken_toml_is_named_with_its_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('workers = 4\nsync = "all-reduce\n')
    said = command("train", "bad.toml")
    assert said.code == 2
    assert "bad.toml: not valid TOML" in said.err
    assert "line 2" in said.err


def test_a_folder_with_a_run_is_not_overwritten(command: Command) -> None:
    assert command("train", "--steps", 1, "--out", "run", *SMALL).code == 0
    said = command("train", "--steps", 1, "--out", "run", *SMALL)
    assert said.code == 4
    assert "run holds a run already" in said.err


def test_torchrun_needs_a_shared_folder(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = command("train", "--steps", 1)
    assert said.code == 2
    assert "add --out FOLDER" in said.err
    said = command("train", "--steps", 1, "--workers", 3, "--out", "x")
    assert "torchrun has started 2 workers but the recipe has 3" in said.err


def test_other_ranks_of_torchrun_write_and_print_nothing(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from equipoise.cli import run_recipe
    from equipoise.loop.train import Run

    result = {"steps": 1}
    monkeypatch.setattr(run_recipe, "run_job", lambda job, **how: Run(result, None, job.folder))  # type: ignore[arg-type]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = command("train", "--out", "run")
    assert (said.code, said.out, said.err) == (0, "", "")
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("d2 --topology exponential", "is directed"),
        ("ad-psgd --topology exponential", "is directed"),
        ("detag --topology one-peer", "changes"),
        ("dsgt --topology one-peer --topology.drop 0.2", "a link that is down would move the mean"),
        ("d2 --topology hypercube --sync.lazy never --workers 8", "eigenvalue -0.500"),
        ("edm --topology ring --sync.lazy never", "eigenvalue -0.333"),
        ("detag --sync.frozen true --sync.rounds 1 --workers 32", "may multiply disagreement by 1.30"),
        ("mg-dsgd --period 2 --sync.rounds 1 --workers 32", "may multiply disagreement by 1.30"),
        ("lsgd --sync.groups 9", "at most as many groups"),
        ("all-reduce --slow 1,2", "one factor of at least 1"),
        ("all-reduce --cluster private", "describes 8 workers"),
        ("all-reduce --cluster office --no-virtual", "is simulated"),
        ("all-reduce --data synthetic --data.kind regress --until accuracy=0.9", "is not measured on this data"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(choice: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--workers", "4", "--virtual", "--steps", "1", "--sync", *choice.split()]
    refusals = []
    for dry in ([], ["--dry-run"]):
        assert main([*words, *dry]) == 2
        refusals.append(capsys.readouterr().err)
    assert refusals[0] == refusals[1]
    assert reason in refusals[0]


def test_several_seeds_give_a_mean_and_a_spread(command: Command, tmp_path: Path) -> None:
    said = command("train", "--virtual", "--steps", 4, "--seeds", 2, "--out", "both", *SMALL)
    assert said.code == 0, said.err
    assert "digits-all-reduce" in said.out
    assert " ± " in said.out
    assert sorted(p.name for p in (tmp_path / "both" / "digits-all-reduce").iterdir()) == ["seed-0", "seed-1"]
