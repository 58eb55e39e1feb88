"""`equipoise cluster`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from equipoise.cli.cluster import doubtful
from equipoise.cli.main import main
from equipoise.loop.speeds import Rate, Timing, repeated_rates
from equipoise.simulate.cluster import Cluster


def test_measure_writes_what_show_and_train_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.cli.cluster._SECONDS", 0.0)
    monkeypatch.setattr("equipoise.cli.cluster._ATTEMPTS", 1)
    monkeypatch.setattr("equipoise.cli.cluster._NONSENSE", float("inf"))  # others may use this machine
    path = tmp_path / "c.toml"
    assert main(["cluster", "measure", "--workers", "2", "--batch", "8", "--out", str(path)]) == 0
    assert Cluster.load(path).size == 2
    assert "spread of the repetitions, by worker: " in capsys.readouterr().err
    monkeypatch.setattr("equipoise.cli.cluster._NONSENSE", 0.6)
    wild = Cluster([300.0, 400.0]), [Rate(300.0, 0.1), Rate(400.0, 0.9)]
    monkeypatch.setattr("equipoise.cli.cluster.measure", lambda recipe: wild)
    other = tmp_path / "other.toml"
    assert main(["cluster", "measure", "--workers", "2", "--batch", "8", "--out", str(other)]) == 2
    assert "nothing is written" in capsys.readouterr().err
    assert not other.exists()
    busy = Cluster([300.0, 400.0]), [Rate(300.0, 0.1), Rate(400.0, 0.4)]
    monkeypatch.setattr("equipoise.cli.cluster.measure", lambda recipe: busy)
    assert main(["cluster", "measure", "--workers", "2", "--batch", "8", "--out", str(other)]) == 0
    assert "warning: the machines are busy" in capsys.readouterr().err
    assert main(["cluster", "measure", "--workers", "2", "--out", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["cluster", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "examples/s" in said
    assert "all-reduce of 4 MB" in said
    how = ["--virtual", "--cluster", str(path), "--workers", "2", "--steps", "2", "--quiet"]
    assert main(["train", *how, "--out", str(tmp_path / "run")]) == 0


def test_rates_that_say_nothing_are_refused() -> None:
    steady = [Rate(331.0, 0.1), Rate(324.0, 0.2), Rate(234.0, 0.1), Rate(379.0, 0.1)]
    assert doubtful(steady, None) == ""
    assert "contradict slow" in doubtful(steady, [1, 1, 1, 4])
    assert doubtful([Rate(400.0, 0.1), Rate(104.0, 0.1)], [1, 4]) == ""
    assert "70 % apart" in doubtful([*steady, Rate(300.0, 0.7)], None)


def test_the_spread_of_a_measurement() -> None:
    seconds = iter([0.002] * 3 + [0.002, 0.02, 0.002, 0.02, 0.02])
    (rate,) = repeated_rates(lambda: time.sleep(next(seconds)), 1.0, timing=Timing(3, 1, 5))
    assert 40 < rate.median < 51
    assert 0.7 < rate.spread < 1.0
    (rate,) = repeated_rates(lambda: time.sleep(0.002), 1.0, timing=Timing(0, 1, 1, seconds=0.02))
    assert rate.spread == 0.0


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
