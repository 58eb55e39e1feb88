"""Progress, printed by worker 0: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ..core.clock import Clock

_INTERVAL = 5.0  # seconds between plain lines
_WIDE = 78  # columns that the bar and all numbers need


class Console:
    """A progress bar on a terminal, a line every few seconds elsewhere.

    total: the current estimate of the number of steps; None if unknown.
    """

    def __init__(self, clock: Clock, total: Callable[[], int | None]):
        self.clock, self._total = clock, total
        self.bar: Any = None
        self.task: Any = None
        self.last_printed = 0.0
        self.metrics = ""
        self.narrow = False

    def __enter__(self) -> Console:
        if sys.stderr.isatty():
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            terminal = Terminal(stderr=True)
            self.narrow = terminal.width < _WIDE
            self.bar = Progress(
                TextColumn("[bold]epoch {task.fields[epoch]}"),
                *([] if self.narrow else [BarColumn(bar_width=None)]),
                MofNCompleteColumn(),
                TextColumn("steps"),
                TextColumn("{task.fields[status]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(),
                console=terminal,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self._total(), epoch=self.clock.epoch + 1, status="")
            self.bar.update(self.task, completed=self.clock.step)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            if error[0] is None:
                self.bar.update(self.task, completed=self.clock.step, total=self.clock.step)
            self.bar.stop()

    def stepped(self, loss: float) -> None:
        clock = self.clock
        # A narrow terminal has no room for both.
        status = self.metrics.strip() if self.narrow and self.metrics else f"loss {loss:.4f}{self.metrics}"
        if self.bar is not None:
            self.bar.update(self.task, completed=clock.step, total=self._total(), epoch=clock.epoch + 1, status=status)
        elif time.monotonic() - self.last_printed > _INTERVAL:
            self._print(status)

    def evaluated(self, models: dict[str, dict[str, float]]) -> None:
        name = "mean" if "mean" in models else next(iter(models))
        metrics = models[name]
        main = "accuracy" if "accuracy" in metrics else "loss"
        self.metrics = f"  {name} {main} {metrics[main]:.4f}"
        if self.bar is not None:
            self.bar.update(self.task, completed=self.clock.step, status=self.metrics.strip())
        else:
            self._print("evaluated" + "".join(f"  {n} loss {m['loss']:.4f}" for n, m in models.items()) + self.metrics)

    def changed(self, arrival: dict[str, Any]) -> None:
        """One line for a change of membership."""
        lost = [str(row["text"]) for row in arrival["lost"]]
        came = [f"worker {worker} joined" for worker in arrival["joined"]]
        workers, step = len(arrival["members"]), self.clock.step
        self._print(f"{'; '.join(lost + came)}; {workers} workers go on from step {step}")

    def _print(self, text: str) -> None:
        self.last_printed = time.monotonic()
        clock = self.clock
        total = self._total()
        print(
            f"epoch {clock.epoch + 1} step {clock.step}{f'/{total}' if total else ''}  {text}",
            file=sys.stderr,
            flush=True,
        )
