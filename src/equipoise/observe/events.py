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
        if event["event"] == "resume" and event["worker"] == 0:
            events = [e for e in events if e["step"] <= event["step"] and e["event"] not in ("end", "stopped")]
        events.append(event)
    return events, broken
