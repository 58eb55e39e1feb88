"""Who was there when, from the events of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.report.runs import load_run
from equipoise.report.timeline import Attendance, _ticks, timeline, who_was_there

from .runs import event, events, write


def membership(worker: int, step: int, generation: int, members: list[int], **more: Any) -> dict[str, Any]:
    row = {"joined": [], "lost": [], **more}
    return event("membership", worker, step, generation=generation, members=members, **row)


LINES = [
    *(event("start", w, 0, examples=6, classes=None) for w in range(3)),
    *(event("step", w, 10, loss=1.0, lr=0.1, batch=4) for w in range(3)),
    *(membership(w, 12, 1, [0, 1], lost=[{"worker": 2, "why": "failed & <fell>", "step": 11}]) for w in (0, 1)),
    *(membership(w, 20, 2, [0, 1, 2, 3], joined=[2, 3]) for w in range(4)),
    *(membership(w, 30, 3, [1, 2, 3], lost=[{"worker": 0, "why": "failed", "step": 29}]) for w in (1, 2, 3)),
    *(event("end", w, 40, consensus=0.0) for w in (1, 2, 3)),
]


def test_a_run_with_losses_and_newcomers(tmp_path: Path) -> None:
    run = load_run(write(tmp_path / "a & <b>", LINES))
    about = timeline(run)
    assert about is not None
    assert (about.end, about.unit, about.generations) == (40.0, "simulated s", 4)
    assert about.workers == {
        0: Attendance(there=[(0.0, 30.0)], lost=[(30.0, "failed")]),
        1: Attendance(there=[(0.0, 40.0)]),
        2: Attendance(there=[(0.0, 12.0), (20.0, 40.0)], lost=[(12.0, "failed & <fell>")], joined=[20.0]),
        3: Attendance(there=[(20.0, 40.0)], joined=[20.0]),
    }
    assert about.part == pytest.approx((30 + 40 + 32 + 20) / 160)
    text = "".join(who_was_there([run]))
    assert "Present: 76.2% of the workers&#x27; time" in text or "Present: 76.2% of the workers' time" in text
    assert "4 generations, 2 lost, 2 joined" in text
    assert "a &amp; &lt;b&gt;" in text
    assert "failed &amp; &lt;fell&gt;, left out at 12 simulated s" in text
    assert text.count("<rect") == 5


def test_a_run_that_waits_for_who_is_away(tmp_path: Path) -> None:
    lines = [*events(), event("away", 1, 20, since=12.0, until=18.5), event("away", 1, 40, since=38.0, until=50.0)]
    about = timeline(load_run(write(tmp_path / "run", lines)))
    assert about is not None
    assert about.workers == {0: Attendance([(0.0, 40.0)]), 1: Attendance([(0.0, 40.0)], [(12.0, 18.5), (38.0, 40.0)])}
    assert about.generations == 1


def test_a_resume_on_another_number_of_workers(tmp_path: Path) -> None:
    lines = [*events(20), *(event("resume", w, 20, examples=3, classes=None) for w in range(3))]
    lines += [event("end", w, 40, consensus=0.0) for w in range(3)]
    about = timeline(load_run(write(tmp_path / "run", lines)))
    assert about is not None
    assert [one.there for one in about.workers.values()] == [[(0.0, 40.0)], [(0.0, 40.0)], [(20.0, 40.0)]]


def test_nothing_is_shown_where_nobody_came_or_went_or_the_events_are_odd(tmp_path: Path) -> None:
    runs = [load_run(write(tmp_path / "plain"))]
    odd = [
        *events(),
        membership(0, 20, 1, "all", lost=[3, {"worker": "x"}], joined=None),
        event("away", 0, 9, since="x"),
    ]
    runs.append(load_run(write(tmp_path / "odd", odd)))
    assert who_was_there(runs[:1]) == []
    assert who_was_there(runs)[0] == "<h2>Who was there</h2>", "what can be read of it is shown"


@pytest.mark.parametrize(
    ("end", "ticks"), [(40.0, [0, 10, 20, 30, 40]), (0.07, [0, 0.02, 0.04, 0.06]), (5.0, range(6))]
)
def test_ticks_are_round(end: float, ticks: Any) -> None:
    assert _ticks(end) == pytest.approx(list(ticks))
