"""Who was there when: one row per worker, drawn without a script."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from .curves import number
from .runs import LoadedRun

_MOST_WORKERS = 64  # rows
_LEFT, _WIDTH, _ROW, _FOOT = 76, 900, 18, 40
_AWAY, _LOST, _JOINED = "#d9722e", "#d1495b", "#2a9d6f"

Span = tuple[float, float]


@dataclass
class Attendance:
    """One worker: when it took part, when it was away while the others waited, when it was lost and when it joined."""

    there: list[Span] = field(default_factory=list)
    away: list[Span] = field(default_factory=list)
    lost: list[tuple[float, str]] = field(default_factory=list)
    joined: list[float] = field(default_factory=list)


@dataclass
class Timeline:
    """A run in which somebody came or went."""

    end: float
    unit: str
    generations: int
    workers: dict[int, Attendance]

    @property
    def part(self) -> float:
        """The part of the time of all workers in which they took part and were not away."""
        whole = self.end * len(self.workers)
        there = sum(b - a for one in self.workers.values() for a, b in one.there)
        return (there - sum(b - a for one in self.workers.values() for a, b in one.away)) / whole if whole else math.nan


class _Change(NamedTuple):
    """From this second on, these workers take part."""

    second: float
    members: set[int]
    joined: list[int]
    lost: list[tuple[int, str]]


def timeline(run: LoadedRun) -> Timeline | None:
    """From the events of a run; None where nobody came or went."""
    simulated = all(number(e.get("simulated_seconds")) is not None for e in run.events)
    began = min((t for e in run.events if (t := number(e.get("time"))) is not None), default=0.0)

    def second(event: dict[str, Any]) -> float:
        if simulated:
            return number(event["simulated_seconds"]) or 0.0
        return (number(event.get("time")) or began) - began

    end = max(map(second, run.events), default=0.0)
    events = [e for e in run.events if isinstance(e["worker"], int)]
    changes = _changes(events, second)
    away = [e for e in events if e["event"] == "away" and number(e.get("since")) is not None]
    if end <= 0 or not (away or len(changes) > 1):
        return None
    rows: dict[int, Attendance] = {w: Attendance() for change in changes for w in sorted(change.members)}
    for change, then in zip(changes, [*(c.second for c in changes[1:]), end], strict=True):
        for w in change.members:
            _extend(rows[w].there, (change.second, then))
        for w in change.joined:
            rows[w].joined.append(change.second)
        for w, why in change.lost:
            rows.setdefault(w, Attendance()).lost.append((change.second, why))
    for event in away:
        until = number(event.get("until"))
        span = event["since"], end if until is None else min(end, until)
        rows.setdefault(event["worker"], Attendance()).away.append(span)
    return Timeline(end, "simulated s" if simulated else "s", len(changes), dict(sorted(rows.items())))


def _changes(events: list[dict[str, Any]], second: Callable[[dict[str, Any]], float]) -> list[_Change]:
    """Each generation once, whoever tells of it. A start or a resume begins one too, with those who tell of it."""
    changes: list[_Change] = []
    kind = ""
    known: set[Any] = set()
    for event in events:
        begins = event["event"] in ("start", "resume")
        if begins and event["event"] == kind:
            changes[-1].members.add(event["worker"])
        elif begins:
            known = set()
            changes.append(_Change(second(event), {event["worker"]}, [], []))
        elif event["event"] == "membership" and event.get("generation") not in known:
            known.add(event.get("generation"))
            members, joined = ([w for w in event.get(key) or [] if isinstance(w, int)] for key in ("members", "joined"))
            lost = [
                row for row in event.get("lost") or [] if isinstance(row, dict) and isinstance(row.get("worker"), int)
            ]
            told = [(row["worker"], str(row.get("why", "was lost"))) for row in lost]
            changes.append(_Change(second(event), {*members, *joined}, joined, told))
        kind = event["event"]
    return changes


def _extend(spans: list[Span], more: Span) -> None:
    """Add a span to those before it; one that goes on is one."""
    if spans and spans[-1][1] == more[0]:
        spans[-1] = spans[-1][0], more[1]
    else:
        spans.append(more)


def picture(about: Timeline) -> str:
    """An inline SVG in the colours of the page."""
    shown = list(about.workers.items())[:_MOST_WORKERS]
    height = len(shown) * _ROW + _FOOT
    words = f"When each of {len(shown)} workers took part"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" font-size="11" fill="currentColor" '
        f'role="img" aria-label="{words}">'
    ]

    def x(second: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 12) * second / about.end

    for i, (worker, one) in enumerate(shown):
        top = i * _ROW + 3
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">worker {worker}</text>')
        for spans, colour, what in ((one.there, "var(--mark)", "takes part"), (one.away, _AWAY, "away")):
            for a, b in spans:
                tip = f"worker {worker} {what} from {a:.4g} to {b:.4g} {about.unit}"
                parts.append(
                    f'<rect x="{x(a):.1f}" y="{top}" width="{max(x(b) - x(a), 1):.1f}" height="{_ROW - 6}" rx="2" '
                    f'fill="{colour}"><title>{escape(tip)}</title></rect>'
                )
        for second, why in one.lost:
            tip = escape(f"worker {worker} {why}, left out at {second:.4g} {about.unit}")
            cross = "M-4-4L4 4M-4 4L4-4"
            place = f'transform="translate({x(second):.1f} {top + 6})"'
            parts.append(f'<path d="{cross}" {place} stroke="{_LOST}" stroke-width="2"><title>{tip}</title></path>')
        for second in one.joined:
            tip = f"worker {worker} joins at {second:.4g} {about.unit}"
            place = f'transform="translate({x(second):.1f} {top + 6})"'
            parts.append(f'<path d="M-4-5L5 0L-4 5z" {place} fill="{_JOINED}"><title>{tip}</title></path>')
    foot = len(shown) * _ROW + 4
    parts.append(f'<path d="M{_LEFT} {foot}H{_WIDTH - 12}" stroke="currentColor" opacity="0.4"/>')
    for second in _ticks(about.end):
        parts.append(f'<text x="{x(second):.1f}" y="{foot + 16}" text-anchor="middle">{second:g}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{foot + 16}" text-anchor="end">{about.unit}</text>')
    return "\n".join([*parts, "</svg>"])


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 on, about six of them."""
    power = 10.0 ** math.floor(math.log10(end / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= end / 5)
    return [k * step for k in range(math.floor(end / step + 1e-9) + 1)]


def who_was_there(runs: list[LoadedRun]) -> list[str]:
    """The section of the page: each run in which somebody came or went."""
    parts = []
    for run in runs:
        about = timeline(run)
        if about is None:
            continue
        losses, joins = (sum(len(getattr(one, kind)) for one in about.workers.values()) for kind in ("lost", "joined"))
        counts = [
            f"{about.part:.1%} of the workers' time",
            *([f"{about.generations} generations"] if losses + joins else []),
        ]
        counts += [f"{losses} lost" if losses else "", f"{joins} joined" if joins else ""]
        more = len(about.workers) - _MOST_WORKERS
        left_out = f" The first {_MOST_WORKERS} workers." if more > 0 else ""
        parts.append(
            f'<div class="card timeline"><h3>{escape(run.name)}</h3><p>Present: {", ".join(filter(None, counts))}.'
            f"{left_out}</p>{picture(about)}</div>"
        )
    marks = [("var(--mark)", "■", "takes part"), (_AWAY, "■", "is away while the others wait")]
    marks += [(_LOST, "✕", "is lost and left out"), (_JOINED, "▶", "joins")]
    legend = ", ".join(f'<span style="color:{colour}">{mark}</span> {what}' for colour, mark, what in marks)
    return ["<h2>Who was there</h2>", f"<p>Each row is a worker: {legend}.</p>", *parts] if parts else []
