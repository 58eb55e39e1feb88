"""Runs of one choice with several seeds: one line with a band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.report.payload import payload
from equipoise.report.runs import load_runs
from equipoise.report.seeds import POINTS, grouped, on_one_grid

from .runs import event, events, write


def three_seeds(folder: Path, *names: str) -> list[Path]:
    """Seeds 0, 1 and 2 of each choice; accuracies differ by 0.01, and seed 2 ends first."""
    runs = []
    for place, name in enumerate(names):
        for seed in range(3):
            lines = events(30 if seed == 2 else 40, better=0.01 * seed - 0.1 * place)
            more = f'seed = {seed}\nuntil = "accuracy=0.9"'
            runs.append(write(folder / name / f"seed-{seed}", lines, more=more))
    return runs


def test_linear_curves_keep_their_values_on_any_common_grid() -> None:
    rng = np.random.default_rng(0)
    curves = []
    for slope in (1.0, 2.0, 4.0):
        x = np.concatenate([[0.0], np.sort(rng.uniform(0, 1, 300)), [1.0]])
        curves.append((x, slope * x))
    grid, rows = on_one_grid(curves)
    assert len(grid) == POINTS
    assert (grid[0], grid[-1]) == (0.0, 1.0)
    np.testing.assert_allclose(rows, np.outer([1.0, 2.0, 4.0], grid), rtol=1e-12, atol=1e-15)


def test_a_curve_that_has_ended_keeps_its_value_and_none_is_guessed_before_it_begins() -> None:
    grid, rows = on_one_grid(
        [(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0])), (np.array([2.0]), np.array([1.0]))]
    )
    assert grid.tolist() == [2.0, 3.0]
    assert rows.tolist() == [[6.0, 7.0], [1.0, 1.0]]


def test_one_line_for_each_choice(tmp_path: Path) -> None:
    loaded = load_runs(three_seeds(tmp_path, "a", "b"))
    groups = grouped(loaded)
    assert [(group.name, [run.name for run in group.runs]) for group in groups] == [
        (name, [f"{name}, seed {k}" for k in range(3)]) for name in ("a", "b")
    ]
    data = payload(groups)
    assert [choice["name"] for choice in data["choices"]] == ["a", "b"]
    assert len(data["colours"]) == 2
    plot = data["plots"][0]
    assert (plot["title"], plot["reference"], plot["label"]) == ("Test accuracy", 0.9, "target 0.9")
    assert [(line["choice"], line["style"]) for line in plot["lines"]] == [
        (k, style) for k in (0, 1) for style in ("solid", "low", "high")
    ]
    mean, low, high = (line["y"]["step"] for line in plot["lines"][:3])
    assert data["choices"][0]["streams"][plot["lines"][0]["stream"]]["step"] == [10, 20, 30, 40]
    ended = [1 - 1 / min(step, 30) + 0.02 for step in (10, 20, 30, 40)]
    assert low == pytest.approx([1 - 1 / step for step in (10, 20, 30, 40)], rel=1e-4)
    assert high[:3] == pytest.approx(ended[:3], rel=1e-4)
    assert mean[3] == pytest.approx((1 - 1 / 40 + 1 - 1 / 40 + 0.01 + ended[3]) / 3, rel=1e-4)
    points = next(p for p in data["plots"] if p["title"] == "Batch size")["lines"]
    assert [len(line["y"]["step"]) for line in points if line["style"] == "points"] == [3, 3]
    # The times are means over workers and seeds; the workers are those of the first seed.
    account = data["accounts"][0]
    assert account["run"] == "a, seed 0"
    assert account["mean"] == pytest.approx([(2 * 30 + 22.5) / 6, (2 * 10 + 7.5) / 6, (2 * 40 + 30) / 6], rel=1e-4)
    assert [about["runs"] for about in data["classes"]] == [["All choices"]]


def test_partitions_of_one_seed_or_of_one_choice_have_short_names(tmp_path: Path) -> None:
    def about(*own: tuple[str, list[int]]) -> list[list[str]]:
        runs = []
        for name, halves in own:
            for seed, half in enumerate(halves):
                lines = [event("start", 0, 0, examples=6, classes=[half, 6 - half])]
                folder = tmp_path / str(own).translate({ord(c): "-" for c in "'([, ])"}) / name / f"seed-{seed}"
                runs.append(write(folder, lines, more=f"seed = {seed}"))
        return [found["runs"] for found in payload(grouped(load_runs(runs)))["classes"]]

    assert about(("a", [1, 2]), ("b", [1, 2])) == [["All choices, seed 0"], ["All choices, seed 1"]]
    assert about(("a", [1, 1]), ("b", [2, 3])) == [["a"], ["b, seed 0"], ["b, seed 1"]]
    assert about(("a", [1, 1]), ("b", [1, 3])) == [["a", "b, seed 0"], ["b, seed 1"]]


def test_choices_have_the_names_that_they_are_given(tmp_path: Path) -> None:
    runs = load_runs(three_seeds(tmp_path, "a-slug"))
    assert [group.name for group in grouped(runs, ["one", "one", "two"])] == ["one", "two"]
    assert [run.name for group in grouped(runs, ["one", "one", "two"]) for run in group.runs][2] == "two"
    assert [group.name for group in grouped(runs)] == ["a-slug"]
    assert [group.name for group in grouped(runs[:1])] == ["seed-0"]


def test_axes_and_log_scales_that_make_sense(tmp_path: Path) -> None:
    losses = (2.0, 0.1)
    lines = [event("step", 0, 10 * k, loss=loss, lr=0.1, batch=0.0) for k, loss in enumerate(losses, 1)]
    plots = {plot["title"]: plot for plot in payload(grouped(load_runs([write(tmp_path / "a", lines)])))["plots"]}
    assert plots["Training loss"]["log"] is False, "offered, but not on"
    assert plots["Learning rate"]["range"] == [0.0, 0.125]
    assert plots["Batch size"]["range"] == [-1.0, 1.0]
    assert all("log" not in plots[name] for name in ("Learning rate", "Batch size", "Bytes sent"))
    mixed = [event("evaluate", 0, s, models={"mean": {"accuracy": a, "loss": a}}) for s, a in ((1, 0.01), (2, 0.9))]
    plots = {plot["title"]: plot for plot in payload(grouped(load_runs([write(tmp_path / "b", mixed)])))["plots"]}
    assert "log" in plots["Test loss"]
    assert "log" not in plots["Test accuracy"]
