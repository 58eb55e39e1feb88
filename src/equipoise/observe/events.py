"""Reading events.jsonl back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_events(run: Path | str) -> list[dict[str, Any]]:
    """The events of a run in file order, as one history.

    After a crash a run goes on from a checkpoint: the lines that the lost attempt wrote behind that checkpoint are left out. A
    half-written last line (a kill in mid-write) is left out too.
    """
    events: list[dict[str, Any]] = []
    for line in (Path(run) / "events.jsonl").read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["event"] == "resume" and event["worker"] == 0:
            events = [e for e in events if e["step"] <= event["step"] and e["event"] not in ("end", "stopped")]
        events.append(event)
    return events
