"""What a worker tells the world: events for the file, progress for the person, scalars for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from .console import Console

if TYPE_CHECKING:
    import torch

    from ..loop.worker import Worker

_CLASSES = 100  # more of them are tokens rather than classes


class Observer:
    """One worker's events, appended to RUN/events.jsonl; worker 0 also drives the console and writes result.json."""

    def __init__(self, worker: Worker):
        self.worker, self.job = worker, worker.job
        self.first = worker.comm.rank == 0
        self.console = Console(worker) if self.first and not self.job.quiet else None
        self.handle: int | None = None
        self.board: Any = None

    def __enter__(self) -> Observer:
        if self.job.folder is not None:
            # One write per line on a file opened for appending: lines of several workers do not mix.
            path = self.job.folder / "events.jsonl"
            self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if self.first and self.job.tensorboard and self.job.folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.job.folder / "tensorboard"))
        if self.console is not None:
            self.console.__enter__()
        begun = "resume" if self.job.resume is not None else "start"
        self.emit(begun, examples=self.worker.context.examples, classes=self._classes())
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console is not None:
            self.console.__exit__(*error)
        if self.board is not None:
            self.board.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def _classes(self) -> list[int] | None:
        """How many examples of each class this worker owns; None where the data has no classes, or very many."""
        labels = self.job.train.view().labels
        if labels is None or labels.min() < 0 or labels.max() >= _CLASSES:
            return None
        return np.bincount(labels[self.worker.position.block], minlength=int(labels.max()) + 1).tolist()

    def emit(self, event: str, **fields: Any) -> None:
        """One line: what happened, on which worker, at which point of its clock."""
        if self.handle is None:
            return
        clock, comm = self.worker.clock, self.worker.comm
        line = {
            "event": event,
            "worker": comm.rank,
            "step": clock.step,
            "epoch": clock.epoch,
            "samples": clock.samples,
            "rounds": clock.rounds,
            "messages": comm.ledger.messages,
            "bytes": comm.ledger.bytes,
            "seconds": round(clock.seconds, 6),
            "simulated_seconds": round(comm.now, 9) if self.job.described else None,
            **{name: round(seconds, 9) for name, seconds in comm.ledger.spent.items()},
            "time": round(time.time(), 3),
            **fields,
        }
        os.write(self.handle, (json.dumps(plain(line)) + "\n").encode())

    def stepped(self, loss: float, table: torch.Tensor) -> None:
        """A control point that is logged. `table` has a row per worker; column 3 is its mean loss since the last one."""
        clock = self.worker.clock
        self.emit("step", loss=loss, lr=clock.lr, batch=clock.batch)
        if self.console is None and self.board is None:
            return
        losses = [v for v in table[:, 3].tolist() if not math.isnan(v)]
        mean = sum(losses) / len(losses) if losses else math.nan
        if self.console is not None:
            self.console.stepped(mean)
        if self.board is not None:
            self.board.add_scalar("loss/train", mean, clock.step)

    def evaluated(self, models: dict[str, dict[str, float]], health: dict[str, float]) -> None:
        if not self.first:
            return
        self.emit("evaluate", models=models, health=health)
        if self.console is not None:
            self.console.evaluated(models)
        if self.board is not None:
            for name, metrics in models.items():
                for metric, value in metrics.items():
                    self.board.add_scalar(f"{metric}/{name}", value, self.worker.clock.step)

    def finished(self, result: dict[str, Any]) -> None:
        if result["models"]:
            self.evaluated(result["models"], result["health"])
        self.emit("stopped" if result["stopped"] else "end", consensus=result["consensus"])
        if self.first and self.job.folder is not None and not result["stopped"]:
            part = self.job.folder / ".result.partial"
            part.write_text(json.dumps(plain({k: v for k, v in result.items() if k != "stopped"}), indent=1) + "\n")
            part.replace(self.job.folder / "result.json")


def plain(value: Any) -> Any:
    """JSON without NaN: what is not finite becomes a string that says so."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
