"""Progress on worker 0: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ..core.clock import Clock

_PAUSE = 5.0  # seconds between plain lines


class Console:
    """A progress bar on a terminal, a line every few seconds elsewhere.

    total: steps to the end as far as they are known now; None where they are not.
    """

    def __init__(self, clock: Clock, total: Callable[[], int | None]):
        self.clock, self._total = clock, total
        self.bar: Any = None
        self.task: Any = None
        self.said = 0.0
        self.metrics = ""

    def __enter__(self) -> Console:
        if sys.stderr.isatty():
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("[bold]epoch {task.fields[epoch]}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("steps"),
                TextColumn("{task.fields[words]}"),
                TimeRemainingColumn(),
                console=Terminal(stderr=True),
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self._total(), epoch=self.clock.epoch + 1, words="")
            self.bar.update(self.task, completed=self.clock.step)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            if error[0] is None:
                self.bar.update(self.task, completed=self.clock.step, total=self.clock.step)
            self.bar.stop()

    def stepped(self, loss: float) -> None:
        clock = self.clock
        words = f"loss {loss:.4f}{self.metrics}"
        if self.bar is not None:
            self.bar.update(self.task, completed=clock.step, total=self._total(), epoch=clock.epoch + 1, words=words)
        elif time.monotonic() - self.said > _PAUSE:
            self._say(words)

    def evaluated(self, models: dict[str, dict[str, float]]) -> None:
        name = "mean" if "mean" in models else next(iter(models))
        metrics = models[name]
        main = "accuracy" if "accuracy" in metrics else "loss"
        self.metrics = f"  {name} {main} {metrics[main]:.4f}"
        if self.bar is None:
            self._say("evaluated" + "".join(f"  {n} loss {m['loss']:.4f}" for n, m in models.items()) + self.metrics)

    def _say(self, words: str) -> None:
        self.said = time.monotonic()
        clock = self.clock
        total = self._total()
        print(
            f"epoch {clock.epoch + 1} step {clock.step}{f'/{total}' if total else ''}  {words}",
            file=sys.stderr,
            flush=True,
        )
