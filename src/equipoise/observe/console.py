"""Progress on worker 0: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..loop.worker import Worker

_PAUSE = 5.0  # seconds between plain lines


class Console:
    def __init__(self, worker: Worker):
        self.worker = worker
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
            self.task = self.bar.add_task("", total=self._total(), epoch=self.worker.clock.epoch + 1, words="")
            self.bar.update(self.task, completed=self.worker.clock.step)
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            if error[0] is None:
                self.bar.update(self.task, completed=self.worker.clock.step, total=self.worker.clock.step)
            self.bar.stop()

    def _total(self) -> int | None:
        """Steps to the end as far as they are known now; None where only a budget ends the run."""
        length, position = self.worker.job.length, self.worker.position
        if length.steps is not None:
            return length.steps
        per_epoch = position.steps_of_epoch()
        if length.epochs is not None:
            return max(1, round(length.epochs * per_epoch))
        if length.samples is not None:
            return max(1, round(length.samples / sum(map(len, position.blocks)) * per_epoch))
        return None

    def stepped(self, loss: float) -> None:
        clock = self.worker.clock
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
        clock = self.worker.clock
        total = self._total()
        print(
            f"epoch {clock.epoch + 1} step {clock.step}{f'/{total}' if total else ''}  {words}",
            file=sys.stderr,
            flush=True,
        )
