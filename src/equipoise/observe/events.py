"""Reading events.jsonl back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FIELDS = ("event", "worker", "step")


def read_events(run: Path | str) -> list[dict[str, Any]]:
    """The events of a run in file order, as one history.

    After a crash a run goes on from a checkpoint: the lines that the lost attempt wrote behind that checkpoint are left out. A
    half-written last line (a kill in mid-write) is left out too.
    """
    return parse_events((Path(run) / "events.jsonl").read_text(errors="replace"))[0]


def parse_events(text: str) -> tuple[list[dict[str, Any]], int]:
    """The events in the text of a file, and how many of its lines are none."""
    events: list[dict[str, Any]] = []
    resumed: dict[int, int] = {}  # workers that say from which of their own steps they go on
    broken = 0
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            broken += 1
            continue
        if not isinstance(event, dict) or any(name not in event for name in _FIELDS):
            broken += 1
            continue
        # All of them say so before any writes another line: they meet first.
        if event["event"] == "resume":
            resumed[event["worker"]] = event["step"]
        elif resumed:
            events, resumed = _cut(events, resumed), {}
        events.append(event)
    return (_cut(events, resumed) if resumed else events), broken


def _cut(events: list[dict[str, Any]], resumed: dict[int, int]) -> list[dict[str, Any]]:
    """What had happened at a checkpoint. A worker that does not come back counts as the slowest that does."""
    least = min(resumed.values())
    return [e for e in events if e["step"] <= resumed.get(e["worker"], least) and e["event"] not in ("end", "stopped")]
