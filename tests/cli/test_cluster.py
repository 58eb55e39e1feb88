"""`equipoise cluster`."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.simulate.cluster import Cluster


def test_measure_writes_what_show_and_train_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    assert main(["cluster", "measure", "--workers", "2", "--batch", "8", "--out", str(path)]) == 0
    assert Cluster.load(path).size == 2
    assert main(["cluster", "measure", "--workers", "2", "--out", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["cluster", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "examples/s" in said
    assert "all-reduce of 4 MB" in said
    how = ["--virtual", "--cluster", str(path), "--workers", "2", "--steps", "2", "--quiet"]
    assert main(["train", *how, "--out", str(tmp_path / "run")]) == 0


def test_errors_name_the_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[workers]]\ncount = 2\n[links]\nbandwidth = "0 Mbit"\n')
    assert main(["cluster", "show", str(path)]) == 2
    assert "bandwidth must be above zero" in capsys.readouterr().err
    assert main(["cluster", "show"]) == 2
    assert main(["cluster", "measure", "--virtual"]) == 2


def test_show_names_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[[workers]]\ncount = 2\nsite = "a"\njitter = 0.1\n[[workers]]\nsite = "b"\nfailures_per_hour = 2\n'
        '[links]\nbandwidth = "1 Gbit"\n[[links.between]]\nsites = ["a", "b"]\nbandwidth = "10 Mbit"\n'
        'latency = "20 ms"\n'
    )
    assert main(["cluster", "show", str(path)]) == 0
    said = capsys.readouterr().out
    for expected in (
        "0 to 1",
        "site a, jitter 10 %",
        "2 failures/h, 2 min each",
        "a to b",
        "10 Mbit, 20 ms, shared by all pairs",
    ):
        assert expected in said
