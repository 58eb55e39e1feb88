from pathlib import Path

import pytest

from equipoise.report.curves import POINTS, Line, Series, streams
from equipoise.report.runs import load_run, load_runs
from equipoise.report.tables import final_results, recipes
from equipoise.report.workers import accounts, class_counts

from .runs import event, events, write


def find(series: list[Series], plot: str) -> tuple[Series, Line]:
    return next((s, line) for s in series for line in s.lines if line.plot == plot)


def test_samples_and_bytes_are_totals_over_workers(tmp_path: Path) -> None:
    series = streams(load_run(write(tmp_path / "a")))
    stream, line = find(series, "Training loss")
    assert stream.axes["step"] == [10, 20, 30, 40]
    assert stream.axes["samples"] == [40, 80, 120, 160]
    assert stream.axes["bytes"] == [200, 400, 600, 800]
    assert line.values == pytest.approx([1 / s + 0.5 for s in (10, 20, 30, 40)])
    stream, line = find(series, "Test accuracy")  # an event of worker 0 alone
    assert stream.axes["samples"] == [40, 80, 120, 160]
    assert line.values == pytest.approx([1 - 1 / s for s in (10, 20, 30, 40)])
    stream, line = find(series, "Herding")
    assert line.values == [0.7] * 4
    assert [line.values for s in series for line in s.lines if line.style == "points"] == [[333.0]]


def test_long_runs_stay_light(tmp_path: Path) -> None:
    series = streams(load_run(write(tmp_path / "a", events(steps=30_000))))
    for stream in series:
        assert len(stream.axes["step"]) <= POINTS
        assert all(len(line.values) == len(stream.axes["step"]) for line in stream.lines)
    stream, _ = find(series, "Training loss")
    assert (stream.axes["step"][0], stream.axes["step"][-1]) == (10, 30_000)


def test_a_point_that_some_worker_never_reached_is_left_out(tmp_path: Path) -> None:
    lines = [event("step", w, s, loss=1.0) for s, w in ((10, 0), (10, 1), (20, 0))]
    stream, _ = find(streams(load_run(write(tmp_path / "a", lines))), "Training loss")
    assert stream.axes["step"] == [10]


def test_a_loss_that_is_no_number_leaves_a_gap(tmp_path: Path) -> None:
    lines = [event("step", 0, s, loss=loss) for s, loss in ((10, 1.0), (20, "nan"), (30, 2.0))]
    _, line = find(streams(load_run(write(tmp_path / "a", lines))), "Training loss")
    assert line.values == [1.0, None, 2.0]


def test_time_per_worker(tmp_path: Path) -> None:
    about = accounts(load_run(write(tmp_path / "a")))
    assert about is not None
    assert about["clock"] == "simulated seconds"
    assert about["totals"] == [[10, 10, 20], [20, 0, 20]]
    for strip, shares in zip(about["strips"], ([0.25, 0.25, 0.5], [0.5, 0, 0.5]), strict=True):
        assert strip["begins"] == [0, 10, 20, 30]
        assert strip["lasts"] == [10] * 4
        assert strip["shares"] == [[share] * 4 for share in shares]
    assert accounts(load_run(write(tmp_path / "old", events(timed=False)))) is None


def test_classes_of_the_workers(tmp_path: Path) -> None:
    assert class_counts(load_run(write(tmp_path / "a"))) == [[1, 5], [4, 2]]


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    folders = [write(tmp_path / place / "run") for place in ("a", "b")]
    assert [run.name for run in load_runs(folders)] == ["a/run", "b/run"]
    assert [run.name for run in load_runs(folders[:1])] == ["run"]


def test_recipes_are_split_into_what_differs_and_what_does_not(tmp_path: Path) -> None:
    runs = load_runs([write(tmp_path / "a", sync="detag"), write(tmp_path / "b", sync="d2")])
    different, same = recipes(runs)
    assert different == [["", "a", "b"], ["sync", "detag", "d2"]]
    assert ["lr", "0.1"] in same
    assert final_results(runs)[0][:3] == ["run", "loss, mean", "steps"]
    assert [row[:3] for row in final_results(runs)[1:]] == [["a", "0.025", "40"], ["b", "0.025", "40"]]
