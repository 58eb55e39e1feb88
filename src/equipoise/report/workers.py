"""How the workers spent their time, and the classes of their examples, from events."""

from __future__ import annotations

from typing import Any

import numpy as np

from .curves import number
from .runs import LoadedRun

KINDS = ("compute", "wait", "communicate")
_SLICES = 120  # time slices per worker
_STRIPS = 16  # workers whose time is drawn slice by slice


def accounts(run: LoadedRun) -> dict[str, Any] | None:
    """Seconds of each kind per worker, and their shares over time; None if the events do not record them."""
    own: dict[int, list[dict[str, Any]]] = {}
    for event in run.events:
        if event["event"] in ("step", "end", "stopped") and all(number(event.get(k)) is not None for k in KINDS):
            own.setdefault(event["worker"], []).append(event)
    if not own:
        return None
    simulated = all(number(e.get("simulated_seconds")) is not None for rows in own.values() for e in rows)
    clock = "simulated_seconds" if simulated else "seconds"
    workers = sorted(own)
    return {
        "clock": clock.replace("_", " "),
        "workers": workers,
        "totals": [[_rounded(own[w][-1][kind]) for kind in KINDS] for w in workers],
        "strips": [_strip(own[w], clock) for w in workers[:_STRIPS]],
        "left": max(0, len(workers) - _STRIPS),
    }


def _strip(rows: list[dict[str, Any]], clock: str) -> dict[str, Any]:
    """The share of each kind in every time slice of a worker."""
    kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SLICES)).round().astype(int))
    table = np.array([[number(rows[i].get(clock)) or 0.0, *(float(rows[i][k]) for k in KINDS)] for i in kept])
    table = np.vstack([np.zeros(4), table])
    spent = np.diff(table[:, 1:], axis=0).clip(0)
    nonempty = spent.sum(1) > 0
    shares = spent[nonempty] / spent[nonempty].sum(1, keepdims=True)
    ends, begins = table[1:, 0][nonempty], table[:-1, 0][nonempty]
    return {
        "begins": [_rounded(v) for v in begins],
        "lasts": [_rounded(v) for v in ends - begins],
        "shares": [[_rounded(v) for v in column] for column in shares.T],
    }


def class_counts(run: LoadedRun) -> list[list[int]] | None:
    """Examples of each class per worker at the start of the run."""
    rows: dict[int, list[int]] = {}
    for event in run.events:
        if event["event"] in ("start", "resume") and isinstance(event.get("classes"), list):
            rows.setdefault(event["worker"], event["classes"])
    return [rows[w] for w in sorted(rows)] if rows else None


def _rounded(value: Any) -> float:
    return float(f"{value:.6g}")
