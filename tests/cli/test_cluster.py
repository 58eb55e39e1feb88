"""`equipoise cluster`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.cli import cluster as cluster_command
from equipoise.cli.cluster import doubtful, worries
from equipoise.cli.main import main
from equipoise.comm.measure_links import MeasuredLink
from equipoise.config.recipe import Recipe
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
    said = capsys.readouterr().err
    assert "spread of the repetitions, by worker: " in said
    assert "; of the links: up to " in said
    monkeypatch.setattr("equipoise.cli.cluster._NONSENSE", 0.6)
    wild = Cluster([300.0, 400.0]), [Rate(300.0, 0.1), Rate(400.0, 0.9)], {}
    monkeypatch.setattr("equipoise.cli.cluster.measure", lambda recipe: wild)
    other = tmp_path / "other.toml"
    assert main(["cluster", "measure", "--workers", "2", "--batch", "8", "--out", str(other)]) == 2
    assert "nothing is written" in capsys.readouterr().err
    assert not other.exists()
    busy = Cluster([300.0, 400.0]), [Rate(300.0, 0.1), Rate(400.0, 0.4)], {}
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


def test_measurements_that_say_nothing_are_refused() -> None:
    steady = [Rate(331.0, 0.1), Rate(324.0, 0.2), Rate(234.0, 0.1), Rate(379.0, 0.1)]
    assert doubtful(steady, {}, None) == ""
    assert "contradict slow" in doubtful(steady, {}, [1, 1, 1, 4])
    assert doubtful([Rate(400.0, 0.1), Rate(104.0, 0.1)], {}, [1, 4]) == ""
    assert "70 % apart" in doubtful([*steady, Rate(300.0, 0.7)], {}, None)
    for rate in (0.0, math.inf, math.nan):
        assert "are no rates" in doubtful([*steady, Rate(rate, 0.0)], {}, None)
    calm = MeasuredLink(eq.Link(1e9, 1e-3), 0.2)
    assert doubtful(steady, {(0, 1): calm}, None) == ""
    wild = {(0, 1): calm, (0, 2): MeasuredLink(eq.Link(4e8, 1e-3), 0.7)}
    assert "workers 0 and 2, 400 Mbit, 1 ms, says little: half of its repetitions are 70 % apart" in doubtful(
        steady, wild, None
    )
    assert "0 and 1 took no time" in doubtful(steady, {(0, 1): MeasuredLink(eq.Link(math.inf, 1e-3), 0.0)}, None)


def test_measurements_that_say_less_than_they_should_are_written_with_a_warning() -> None:
    steady = [Rate(400.0, 0.1), Rate(104.0, 0.1)]
    assert worries(steady, {(0, 1): MeasuredLink(eq.Link(1e9), 0.2)}, [1, 4]) == []
    (busy,) = worries(steady, {(0, 1): MeasuredLink(eq.Link(1e9), 0.3)}, None)
    assert "busy" in busy
    half = [Rate(34500.0, 0.1), Rate(35000.0, 0.1), Rate(37300.0, 0.1), Rate(16800.0, 0.1)]
    assert doubtful(half, {}, [1, 1, 1, 4]) == ""
    (differs,) = worries(half, {}, [1, 1, 1, 4])
    assert differs == "slow = [1, 1, 1, 4] was declared, and the rates 34500, 35000, 37300, 16800 were measured"


@pytest.mark.parametrize(
    ("spreads", "taken", "counts"), [([0.4, 0.3, 0.5, 0.0], 3, 0.3), ([0.4, 0.1, 0.0], 2, 0.1), ([0.1, 0.0], 1, 0.1)]
)
def test_the_calmest_of_three_attempts_of_seven_repetitions(
    spreads: list[float], taken: int, counts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    repetitions: list[int] = []

    def rates(job: Any, comm: Any, timing: Timing) -> list[Rate]:
        repetitions.append(timing.repetitions)
        return [Rate(1000.0 * spreads[len(repetitions) - 1], spreads[len(repetitions) - 1])]

    def links(comm: Any, times: int) -> dict[tuple[int, int], MeasuredLink]:
        link = eq.Link(1e9 * spreads[len(seen)])
        seen.append(times)
        return {(0, 1): MeasuredLink(link, spreads[len(seen) - 1])}

    seen: list[int] = []
    monkeypatch.setattr("equipoise.loop.speeds.repeated_job_rates", rates)
    monkeypatch.setattr("equipoise.comm.measure_links.measure_links", links)
    monkeypatch.setattr("equipoise.launch.start.spawn", lambda work, workers, timeout: [work(None)])
    cluster, measured, measured_links = cluster_command.measure(Recipe())
    assert (repetitions, seen) == ([7] * taken, [7] * taken)
    assert measured == [Rate(1000.0 * counts, counts)]
    assert (cluster.rates, cluster.link) == ([1000.0 * counts], eq.Link(1e9 * counts))
    assert measured_links[0, 1].spread == counts


@pytest.mark.parametrize(
    ("slower", "code", "words"),
    [(100.0, 0, ""), (200.0, 0, "warning: slow = [1.0, 4.0] was declared"), (400.0, 2, "contradict slow = [1.0, 4.0]")],
)
def test_slow_is_compared_with_what_was_measured(
    slower: float,
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = Cluster([400.0, slower]), [Rate(400.0, 0.1), Rate(slower, 0.1)], {}
    monkeypatch.setattr("equipoise.cli.cluster.measure", lambda recipe: measured)
    path = tmp_path / "c.toml"
    assert main(["cluster", "measure", "--workers", "2", "--slow", "1,4", "--out", str(path)]) == code
    said = capsys.readouterr().err
    assert words in said
    assert ("slow" in said) == bool(words)
    assert path.exists() == (code == 0)


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
