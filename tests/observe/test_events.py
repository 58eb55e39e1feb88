"""Reading events.jsonl: damaged lines, and one history over crashes and resumes."""

import json
import math
import os
from pathlib import Path
from typing import Any

from equipoise.core.writing import begin_line
from equipoise.observe.events import parse_events, read_events
from equipoise.observe.observer import plain


def line(kind: str, worker: int, step: int) -> str:
    return json.dumps({"event": kind, "worker": worker, "step": step})


def history(events: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(e["event"], e["worker"], e["step"]) for e in events]


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    lines = [line("step", 0, 1), "3", '{"event": "step"}', line("step", 0, 2), '{"event": "st']
    events, damaged = parse_events("\n".join(lines))
    assert history(events) == [("step", 0, 1), ("step", 0, 2)]
    assert damaged == 3
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert read_events(tmp_path) == events


def test_a_half_line_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    """A full disk has left it; blank lines, which several workers may leave in ending it, are no damage."""
    path = tmp_path / "events.jsonl"
    path.write_text(line("step", 0, 1) + '\n{"event": "st')
    for _ in range(2):
        handle = os.open(path, os.O_RDWR | os.O_APPEND)
        begin_line(handle)
        os.close(handle)
    with path.open("a") as file:
        file.write(f"\n{line('resume', 0, 1)}\n{line('step', 0, 2)}\n")
    events, damaged = parse_events(path.read_text())
    assert history(events) == [("step", 0, 1), ("resume", 0, 1), ("step", 0, 2)]
    assert damaged == 1


def test_events_after_the_checkpoint_of_a_resume_are_dropped() -> None:
    crashed = [line("step", w, s) for s in (1, 2, 3) for w in (0, 1)] + [line("stopped", 0, 3)]
    resumed = [line("resume", 0, 2), line("resume", 1, 1), line("step", 0, 3)]
    events, damaged = parse_events("\n".join([*crashed, *resumed]))
    assert damaged == 0
    assert history(events) == [
        *[("step", 0, 1), ("step", 1, 1), ("step", 0, 2)],
        *[("resume", 0, 2), ("resume", 1, 1), ("step", 0, 3)],
    ]


def test_a_worker_that_does_not_resume_is_cut_at_the_earliest_step() -> None:
    crashed = [line("step", w, s) for s in (1, 2) for w in (0, 1, 2)]
    events, _ = parse_events("\n".join([*crashed, line("resume", 0, 2), line("resume", 1, 1)]))
    assert ("step", 2, 1) in history(events)
    assert ("step", 2, 2) not in history(events)


def test_plain_values_are_valid_json() -> None:
    value = plain({"loss": math.nan, "sizes": (1, 2), "models": [{"mean": -math.inf}]})
    assert value == {"loss": "nan", "sizes": [1, 2], "models": [{"mean": "-inf"}]}
    json.dumps(value, allow_nan=False)
