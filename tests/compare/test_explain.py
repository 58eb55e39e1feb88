"""Ranking and explanation, on made-up results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from equipoise.compare.explain import explain, within_spread
from equipoise.compare.grid import Combination
from equipoise.compare.page import bars_of
from equipoise.compare.plan import PlannedRun
from equipoise.compare.table import Criterion, Spread, cells, rows_of
from equipoise.compare.write import LEAST_FIRST, as_csv, as_markdown
from equipoise.config.recipe import Recipe
from equipoise.core.terminal import fitting
from equipoise.loop.until import Until

CRITERION = Criterion("simulated_seconds", Until("accuracy", 0.9), "accuracy")


def run(
    name: str, seed: int = 0, seconds: float | None = None, accuracy: float = 0.9, failure: str = "", **more: Any
) -> PlannedRun:
    planned = PlannedRun(Combination(name, Recipe()), seed, Path(name), Recipe())
    if failure:
        planned.state, planned.failure = "failed", failure
        return planned
    cost = {"samples": 1000, "rounds": 10, "bytes": 4000, "simulated_seconds": seconds or 99.0, "step": 5, **more}
    spent = {key: cost.pop(key) for key in ("compute", "wait", "communicate") if key in cost}
    planned.state = "done"
    planned.result = {
        **cost,
        "models": {"mean": {"loss": 1 - accuracy, "accuracy": accuracy}},
        "reached": cost if seconds is not None else None,
        "workers": [spent, spent],
    }
    return planned


def explained(*runs: PlannedRun, reference: str = "base", criterion: Criterion = CRITERION) -> str:
    return explain(rows_of(list(runs), criterion), criterion, reference)


def ranks(*runs: PlannedRun, criterion: Criterion = CRITERION) -> list[tuple[int, str]]:
    return [(row.rank, row.name) for row in rows_of(list(runs), criterion)]


def test_small_factors_whose_product_is_a_win() -> None:
    said = explained(run("fast", 0, 100.0), run("base", 0, 107.0, samples=1035))
    assert said.startswith("fast wins")
    assert "Compared with base it needs a few examples less, and a little less time for each." in said


def test_bars_say_how_much_faster_than_the_baseline() -> None:
    rows = rows_of([run("base", 0, 40.0), run("fast", 0, 10.0), run("lost", 0, accuracy=0.5)], CRITERION, "base")
    about = bars_of(rows, CRITERION)
    assert about is not None
    assert [(bar.name, bar.factor) for bar in about.rows] == [("fast", "4.0×"), ("base", "1.0×"), ("lost", "")]
    assert about.caption.endswith("×: times as fast as base.")
    failed = rows_of([run("base", 0, accuracy=0.5), run("fast", 0, 10.0)], CRITERION, "base")
    without = bars_of(failed, CRITERION)
    assert without is not None
    assert not any(bar.factor for bar in without.rows)


def test_names_with_commas_can_be_told_apart() -> None:
    said = explained(run("a, int4", 0, 10.0), run("b", 0, 10.1), run("c, int8", 0, 10.2))
    assert said.startswith("No clear winner: a, int4; b; and c, int8 reach accuracy=0.9 in 10, 10 and 10 simulated s")


def test_reached_by_time_then_by_metric_then_failures() -> None:
    runs = [
        *(run("slow", s, 20.0 + s) for s in range(2)),
        *(run("fast", s, 10.0 + s) for s in range(2)),
        run("partly", 0, 1.0),
        run("partly", 1, accuracy=0.8),
        run("near", 0, accuracy=0.89),
        run("far", 0, accuracy=0.5),
        run("broken", 0, failure="worker 1, step 3: the loss is nan"),
        run("nan", 0, accuracy=math.nan),
    ]
    assert ranks(*runs) == [
        *[(1, "fast"), (2, "slow"), (3, "partly"), (4, "near"), (5, "far"), (6, "nan"), (7, "broken")]
    ]


def test_a_lower_loss_ranks_higher() -> None:
    criterion = Criterion("samples", Until("loss", 0.05), "loss")
    assert ranks(run("a", accuracy=0.5), run("b", accuracy=0.7), criterion=criterion) == [(1, "b"), (2, "a")]


def test_ties_share_a_rank() -> None:
    runs = [run("a", 0, 10.0), run("b", 0, 10.0), run("c", 0, 11.0)]
    assert ranks(*runs) == [(1, "a"), (1, "b"), (3, "c")]
    assert explained(*runs).startswith(
        "No clear winner: a and b reach accuracy=0.9 in 10 and 10 simulated s, within 5%."
    )


def test_what_wins_by_how_much_and_why() -> None:
    runs = [
        run("base", s, 40.0 + s, samples=2000, bytes=8e6, rounds=400, compute=8.0, wait=12.0, communicate=20.0)
        for s in (0, 1)
    ]
    runs += [run("mid", s, 20.0 + s) for s in (0, 1)]
    runs += [
        run("best", s, 10.0 + s, samples=1000, bytes=1e6, rounds=50, compute=8.0, wait=1.0, communicate=1.0)
        for s in (0, 1)
    ]
    # 40.5 / 10.5 is the product of the two factors.
    assert explained(*runs) == (
        "best wins: accuracy=0.9 in 10 simulated s, 2.0 times as fast as mid and 3.9 times as fast as base. "
        "Compared with base it needs 2.0 times fewer examples and processes examples 1.9 times as fast."
    )


def test_a_win_must_exceed_the_margin() -> None:
    """0.4 % with no spread at all is not a win, and nothing else is explained."""
    runs = [*(run("a", s, 10.0) for s in (0, 1)), *(run("b", s, 10.04, samples=3000) for s in (0, 1))]
    assert explained(*runs) == "No clear winner: a and b reach accuracy=0.9 in 10 and 10 simulated s, within 5%."


def test_more_examples_may_win_by_pace() -> None:
    runs = [*(run("base", s, 30.0, samples=1000) for s in (0, 1)), *(run("a", s, 10.0, samples=2000) for s in (0, 1))]
    assert explained(*runs).endswith(
        "Compared with base it processes examples 6.0 times as fast but needs 2.0 times as many examples."
    )


def test_the_spread_of_the_seeds_decides_whether_anything_wins() -> None:
    close = [
        *(run("a", s, t) for s, t in enumerate((10, 12, 14))),
        *(run("b", s, t) for s, t in enumerate((11, 13, 15))),
    ]
    assert explained(*close).startswith("No clear winner: a and b reach")
    clear = [
        *(run("a", s, t) for s, t in enumerate((10, 11, 12))),
        *(run("b", s, t) for s, t in enumerate((21, 23, 25))),
    ]
    assert "2.1 times as fast as b" in explained(*clear)
    assert not within_spread(Spread.of([1.0]), Spread.of([1.0])), "one seed has no spread to be within"


def test_one_seed_says_so() -> None:
    text = explained(run("a", 0, 10.0), run("b", 0, 20.0))
    assert "2.0 times as fast as b" in text
    assert text.endswith("One seed only: the spread over seeds is unknown.")


def test_choices_that_miss_the_target() -> None:
    text = explained(*(run("a", s, 10.0 + s) for s in (0, 1)), run("b", 0, 5.0), run("b", 1), run("c", 0), run("c", 1))
    assert "Only a reaches" in text
    assert "Target not reached by c." in text
    assert "Target reached with some seeds only by b (1 of 2)." in text
    text = explained(
        run("a", 0, accuracy=0.8), run("a", 1, accuracy=0.7), run("b", 0, accuracy=0.5), run("b", 1, accuracy=0.6)
    )
    assert (
        text == "No choice reaches accuracy=0.9; the closest is a with accuracy 0.750 ± 0.071 after 99.0 simulated s."
    )
    text = explained(run("a", 0, 5.0), run("a", 1, accuracy=0.7))
    assert "No choice reaches accuracy=0.9 with every seed; a does with 1 of 2" in text


def test_failures_are_named() -> None:
    assert explained(run("a", failure="no")) == "Every choice failed: the table says why."
    assert "Failed: b." in explained(run("a", 0, 1.0), run("b", failure="no"))


def test_without_a_target_or_a_clock() -> None:
    free = Criterion("samples", None, "accuracy")
    text = explained(
        *(run("a", s, accuracy=0.9 + s / 100) for s in (0, 1)),
        *(run("b", s, accuracy=0.8) for s in (0, 1)),
        criterion=free,
    )
    assert text.startswith("a ends with the best accuracy, 0.905 ± 0.007; the next, b, has 0.800 ± 0.000.")
    assert "--cluster FILE" in text


def test_by_goodput_the_target_and_the_metric_do_not_matter() -> None:
    by = CRITERION._replace(by="goodput")
    runs = [
        *(run("base", s, samples=900, simulated_seconds=10.0) for s in (0, 1)),
        *(run("b", s, samples=2000, simulated_seconds=10.0) for s in (0, 1)),
        *(run("a", s, accuracy=0.1, samples=3000 + 20 * s, simulated_seconds=10.0) for s in (0, 1)),
        run("broken", 0, failure="it broke"),
    ]
    assert ranks(*runs, criterion=by) == [(1, "a"), (2, "b"), (3, "base"), (4, "broken")]
    text = explained(*runs, criterion=by)
    assert text.startswith(
        "a has the highest goodput: 300 examples per simulated s that count, 1.5 times that of b "
        "and 3.3 times that of base."
    )


def test_cells_of_the_table() -> None:
    runs = [run("a|b", 0, 10.0, compute=9.0, wait=1.0), run("c", 0, accuracy=0.5), run("d", failure="it broke")]
    rows = rows_of(runs, CRITERION)
    head, body = cells(rows, CRITERION)
    assert head == [
        "",
        "choice",
        "simulated s to accuracy=0.9",
        "examples",
        "examples/s",
        "bytes",
        "rounds",
        "final accuracy",
        "reached",
        "wait",
    ]
    assert body[0] == ["1", "a|b", "10.0", "1,000", "100", "4.00 kB", "10.0", "0.900", "1 of 1", "10%"]
    assert body[1][2] == "not within 99.0"
    assert body[2][2] == "failed: it broke"
    assert "a\\|b" in as_markdown(head, body)
    lines = as_csv(rows, CRITERION).splitlines()
    assert lines[0].startswith(
        "rank,choice,seeds,reached,failed,simulated_seconds_mean,simulated_seconds_deviation,bytes_mean"
    )
    assert lines[1].startswith("1,a|b,1,1,0,10.0,,4000.0,,")
    assert lines[3].endswith(",it broke")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "-"),
        ([0.0], "0.00"),
        ([1234.5], "1,234"),
        ([12.34, 12.38], "12.4 ± 0.0"),
        ([0.001234], "0.0012"),
        ([math.nan], "nan"),
    ],
)
def test_format_of_numbers(values: list[float], text: str) -> None:
    assert Spread.of(values).format() == text


def test_narrow_terminals_lose_columns_and_no_word() -> None:
    runs = [run("periodic-average, every 16", s, 10.0 + s, compute=9.0, wait=1.0) for s in (0, 1)]
    head, body = cells(rows_of(runs, CRITERION), CRITERION)
    assert fitting(head, body, 200, LEAST_FIRST) == list(range(len(head)))
    narrow = [head[i] for i in fitting(head, body, 80, LEAST_FIRST)]
    assert narrow[:3] == head[:3]
    assert "wait" not in narrow
