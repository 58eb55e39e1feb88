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
    own: dict[int, list[list[dict[str, Any]]]] = {}  # by worker; one list each time that it takes part
    for event in run.events:
        if any(number(event.get(k)) is None for k in KINDS):
            continue
        if event["event"] == "membership" and event["worker"] in (event.get("joined") or []):
            own.setdefault(event["worker"], []).append([event])  # its counters begin anew
        elif event["event"] in ("step", "end", "stopped"):
            own.setdefault(event["worker"], [[]])[-1].append(event)
    own = {w: kept for w, spells in own.items() if (kept := [rows for rows in spells if rows])}
    if not any(event["event"] != "membership" for spells in own.values() for rows in spells for event in rows):
        return None
    every = [event for spells in own.values() for rows in spells for event in rows]
    simulated = all(number(e.get("simulated_seconds")) is not None for e in every)
    clock = "simulated_seconds" if simulated else "seconds"
    workers = sorted(own)
    return {
        "clock": clock.replace("_", " "),
        "workers": workers,
        "totals": [[_rounded(sum(rows[-1][kind] for rows in own[w])) for kind in KINDS] for w in workers],
        "strips": [_strip(own[w], clock) for w in workers[:_STRIPS]],
        "left": max(0, len(workers) - _STRIPS),
    }


def _strip(spells: list[list[dict[str, Any]]], clock: str) -> dict[str, Any]:
    """The share of each kind in every time slice of a worker."""
    begins, lasts, shares = [], [], []
    for rows in spells:
        kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SLICES // len(spells) + 2)).round().astype(int))
        table = np.array([[number(rows[i].get(clock)) or 0.0, *(float(rows[i][k]) for k in KINDS)] for i in kept])
        if rows[0]["event"] != "membership":
            table = np.vstack([np.zeros(4), table])
        spent = np.diff(table[:, 1:], axis=0).clip(0)
        nonempty = spent.sum(1) > 0
        begins += table[:-1, 0][nonempty].tolist()
        lasts += np.diff(table[:, 0])[nonempty].tolist()
        shares += (spent[nonempty] / spent[nonempty].sum(1, keepdims=True)).tolist()
    return {
        "begins": [_rounded(v) for v in begins],
        "lasts": [_rounded(v) for v in lasts],
        "shares": [[_rounded(row[kind]) for row in shares] for kind in range(len(KINDS))],
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
