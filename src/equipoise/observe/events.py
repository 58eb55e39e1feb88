"""Reading events.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.json import parse_json


def read_events(run: Path | str) -> list[dict[str, Any]]:
    """The events of a run in file order, as one history.

    After a crash a run is resumed from a checkpoint. The events that the crashed attempt wrote after that checkpoint
    are left out, and so is a half-written last line.
    """
    return parse_events((Path(run) / "events.jsonl").read_text(errors="replace"))[0]


def parse_events(text: str) -> tuple[list[dict[str, Any]], int]:
    """The events in the content of a file, and the number of damaged lines."""
    events: list[dict[str, Any]] = []
    resumed: dict[int, int] = {}  # worker -> the step from which it resumes
    damaged = 0
    for line in filter(None, text.splitlines()):
        try:
            event = parse_json(line)
        except ValueError:
            damaged += 1
            continue
        if not _is_event(event):
            damaged += 1
            continue
        # All workers write "resume" before any of them writes another event: they synchronise first. So they do when
        # workers come or go, and the others return to the last round that all have.
        if event["event"] in ("resume", "membership"):
            resumed[event["worker"]] = event["step"]
        elif resumed:
            events, resumed = _cut(events, resumed), {}
        events.append(event)
    return (_cut(events, resumed) if resumed else events), damaged


def _is_event(value: Any) -> bool:
    """Does it say what, who and when?"""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return False
    return all(type(value.get(name)) is int and 0 <= value[name] < 2**63 for name in ("worker", "step"))


def _cut(events: list[dict[str, Any]], resumed: dict[int, int]) -> list[dict[str, Any]]:
    """Drop the events after the checkpoint. A worker that does not resume is cut at the earliest resumed step."""
    least = min(resumed.values())
    return [e for e in events if e["step"] <= resumed.get(e["worker"], least) and e["event"] not in ("end", "stopped")]
