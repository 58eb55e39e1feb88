"""Commands that take a run take a comparison too: all its runs, or the first one of its best choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.cli.run_folders import every_run, runs_of


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "c"
    flags = ["--model", "logistic", "--data.limit", "200", "--workers", "2", "--epochs", "1", "--seeds", "1", "--quiet"]
    assert main(["compare", "--vary", "lr=0.001,0.3", *flags, "--out", str(folder)]) == 0
    return folder


def test_the_winner_comes_first_wherever_the_folder_is(comparison: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.symlink_to(comparison)
    first, second = (row["name"].replace(" ", "-") for row in json.loads((moved / "compare.json").read_text())["rows"])
    assert runs_of(moved) == [moved / first / "seed-0", moved / second / "seed-0"]
    assert every_run([str(comparison), "other"])[2] == Path("other")
    assert runs_of(tmp_path) == []


def test_help_examples_work_on_a_comparison(
    comparison: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(comparison)]) == 0
    assert f"written: {comparison / 'report.html'}" in capsys.readouterr().out
    assert main(["cite", str(comparison)]) == 0
    assert "@" in capsys.readouterr().out
    assert main(["flatness", str(comparison), "--examples", "64", "--probes", "2", "--most", "4"]) == 0
    said = capsys.readouterr()
    assert f"a run of its best choice, {runs_of(comparison)[0]}" in said.err
    assert main(["resume", str(comparison), "--epochs", "2", "--quiet"]) == 0
    assert "epochs" in capsys.readouterr().out


def test_a_folder_that_is_no_run_has_one_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = {name: main([name, str(tmp_path)]) for name in ("report", "cite", "flatness", "resume")}
    assert len({*codes.values()}) == 1, codes
    assert capsys.readouterr().err.count("\n") == 4


def test_a_flag_that_is_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--zebra", "3"]) == 2
    assert "did you mean" not in capsys.readouterr().err
