"""One display over all runs: bars on a terminal, a line for each run that ends elsewhere. On stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .plan import Task
from .table import Criterion, metric_of, time_words

_TAIL = 1 << 14  # bytes of a run's events that are enough to see where it is


class Display:
    def __init__(self, tasks: list[Task], measure: Criterion, *, quiet: bool = False):
        self.tasks, self.measure, self.quiet = tasks, measure, quiet
        self.bars: Any = None
        self.rows: dict[int, Any] = {}

    def __enter__(self) -> Display:
        if self.quiet or not sys.stderr.isatty():
            return self
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        # Without a thread of its own: runs are forked while this is on.
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self.bars.start()
        self.whole = self.bars.add_task("[bold]runs", total=len(self.tasks), words="")
        self._count()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bars is not None:
            self.bars.stop()

    def told(self, active: list[Task]) -> None:
        """Where the active runs are."""
        if self.bars is None:
            return
        for number in [number for number in self.rows if number not in map(id, active)]:
            self.bars.remove_task(self.rows.pop(number))
        for task in active:
            if id(task) not in self.rows:
                self.rows[id(task)] = self.bars.add_task(f"  {task.words}", total=1.0, words="")
            part, words = standing(task)
            self.bars.update(self.rows[id(task)], completed=part, words=words)
        self.bars.refresh()

    def ended(self, task: Task) -> None:
        self._count()
        if self.bars is None and not self.quiet:
            done = sum(t.state in ("done", "failed") for t in self.tasks)
            print(f"{done}/{len(self.tasks)}  {task.words}: {outcome(task, self.measure)}", file=sys.stderr, flush=True)

    def _count(self) -> None:
        if self.bars is not None:
            done, failed = (sum(t.state == state for t in self.tasks) for state in ("done", "failed"))
            words = f"{done + failed} of {len(self.tasks)}" + (f", {failed} failed" if failed else "")
            self.bars.update(self.whole, completed=done + failed, words=words)
            self.bars.refresh()


def outcome(task: Task, measure: Criterion) -> str:
    """The end of a run in a few words."""
    if task.state == "failed":
        return f"failed: {task.failure}"
    metric, value = metric_of(task.result, measure.metric)
    reached = task.result.get("reached")
    if reached is not None:
        return f"{measure.until} in {time_words(reached[measure.name], measure)}, step {reached['step']:,}"
    return f"{metric} {value:.4f} after {time_words(task.result[measure.name], measure)}"


def standing(task: Task) -> tuple[float, str]:
    """The part of its length that a run has behind it, and its last evaluation, from its events."""
    part, words = 0.0, ""
    plain = task.recipe.plain()
    for event in tail(task.folder / "events.jsonl"):
        if event.get("worker") != 0:
            continue
        done = [event["step"] / plain["steps"]] if plain["steps"] else []
        if plain["epochs"]:
            done.append(event["epoch"] / plain["epochs"])
        part = max([part, *done])
        if event["event"] == "evaluate":
            metrics = event["models"].get("mean", {})
            metric = "accuracy" if "accuracy" in metrics else "loss"
            words = f"step {event['step']:,}  {metric} {float(metrics[metric]):.4f}"
    return min(part, 1.0), words


def tail(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # cut at the beginning or half-written at the end
            continue
        found.append(event)
    return [event for event in found if isinstance(event, dict) and "step" in event]
