"""Progress of all runs on stderr: bars on a terminal, one line per finished run elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..core.json import parse_json
from .plan import PlannedRun
from .table import Criterion, format_time, metric_of

_STATUS, _WIDE = 30, 100  # columns of the step and the metric with gaps; from where on there is room for a long bar
_TAIL_BYTES = 1 << 14  # enough of the end of events.jsonl to hold the last evaluation


class Display:
    def __init__(self, runs: list[PlannedRun], criterion: Criterion, *, quiet: bool = False):
        self.runs, self.criterion, self.quiet = runs, criterion, quiet
        self.bars: Any = None
        self.rows: dict[int, Any] = {}

    def __enter__(self) -> Display:
        if self.quiet or not sys.stderr.isatty():
            return self
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(stderr=True)
        bar = 24 if console.width > _WIDE else 10
        # Names are cut where there is no room: the numbers matter more.
        names = Column(no_wrap=True, overflow="ellipsis", max_width=max(10, console.width - bar - _STATUS))
        # No refresh thread: runs are forked while the display is active, and a fork copies no threads.
        self.bars = Progress(
            TextColumn("{task.description}", table_column=names),
            BarColumn(bar_width=bar),
            TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
        )
        self.bars.start()
        self.total_bar = self.bars.add_task("[bold]runs", total=len(self.runs), status="")
        self._count()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bars is not None:
            for task in self.rows.values():  # runs that have ended since the last look
                self.bars.remove_task(task)
            self.bars.stop()

    def update(self, active: list[PlannedRun]) -> None:
        """Show how far the active runs are."""
        if self.bars is None:
            return
        for number in [number for number in self.rows if number not in map(id, active)]:
            self.bars.remove_task(self.rows.pop(number))
        for run in active:
            if id(run) not in self.rows:
                self.rows[id(run)] = self.bars.add_task(f"  {run.label}", total=1.0, status="")
            fraction, status = progress_of(run)
            self.bars.update(self.rows[id(run)], completed=fraction, status=status)
        self.bars.refresh()

    def finished(self, run: PlannedRun) -> None:
        self._count()
        if self.bars is None and not self.quiet:
            done = sum(r.state in ("done", "failed") for r in self.runs)
            print(f"{done}/{len(self.runs)}  {run.label}: {outcome(run, self.criterion)}", file=sys.stderr, flush=True)

    def _count(self) -> None:
        if self.bars is not None:
            done, failed = (sum(r.state == state for r in self.runs) for state in ("done", "failed"))
            status = f"{done + failed} of {len(self.runs)}" + (f", {failed} failed" if failed else "")
            self.bars.update(self.total_bar, completed=done + failed, status=status)
            self.bars.refresh()


def outcome(run: PlannedRun, criterion: Criterion) -> str:
    """The result of a run on one line."""
    if run.state == "failed":
        return f"failed: {run.failure}"
    metric, value = metric_of(run.result, criterion.metric)
    reached = run.result.get("reached")
    if reached is not None:
        time = format_time(reached[criterion.name], criterion)
        return f"{criterion.until} in {time}, step {reached['step']:,}"
    return f"{metric} {value:.4f} after {format_time(run.result[criterion.name], criterion)}"


def progress_of(run: PlannedRun) -> tuple[float, str]:
    """The fraction of the run that is done, and its last evaluation, both read from its events."""
    fraction, status = 0.0, ""
    plain = run.recipe.plain()
    for event in last_events(run.folder / "events.jsonl"):
        if event.get("worker") != 0:
            continue
        fractions = [event["step"] / plain["steps"]] if plain["steps"] else []
        if plain["epochs"]:
            fractions.append(event["epoch"] / plain["epochs"])
        fraction = max([fraction, *fractions])
        if event["event"] == "evaluate":
            metrics = event["models"].get("mean", {})
            metric = "accuracy" if "accuracy" in metrics else "loss"
            status = f"step {event['step']:,}  {metric} {float(metrics[metric]):.4f}"
    return min(fraction, 1.0), status


def last_events(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = parse_json(line)
        except ValueError:  # the first line may be cut, the last one half-written
            continue
        events.append(event)
    return [event for event in events if isinstance(event, dict) and "step" in event]
