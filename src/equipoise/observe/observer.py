"""What a worker reports: events to a file, progress to the console, scalars to TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..comm.base import Comm
from ..core.clock import Clock
from ..core.extras import require
from .console import Console

_CLASSES = 100  # with more, the labels are tokens rather than classes


class Observer:
    """One worker's events, appended to RUN/events.jsonl; worker 0 also drives the console and TensorBoard.

    described: a cluster is described, so events carry simulated seconds.
    """

    def __init__(
        self,
        comm: Comm,
        clock: Clock,
        folder: Path | None,
        *,
        described: bool = False,
        console: Console | None = None,
        tensorboard: bool = False,
    ):
        self.clock, self.folder, self.described = clock, folder, described
        self._console, self._tensorboard = console, tensorboard
        self.follow(comm)
        self.handle: int | None = None
        self.board: Any = None

    def follow(self, comm: Comm) -> None:
        """Report for this comm: the first worker may be another one than before."""
        self.comm, self.first = comm, comm.rank == 0
        self.console = self._console if self.first else None
        self.tensorboard = self._tensorboard and self.first

    def __enter__(self) -> Observer:
        if self.folder is not None:
            # One write per line to a file opened for appending: lines of different workers do not interleave.
            path = self.folder / "events.jsonl"
            self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if self.tensorboard and self.folder is not None:
            require("tensorboard", "tensorboard", "--tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.folder / "tensorboard"))
        if self.console is not None:
            self.console.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console is not None:
            self.console.__exit__(*error)
        if self.board is not None:
            self.board.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def started(
        self, *, resumed: bool, examples: int, classes: list[int] | None, arrival: dict[str, Any] | None = None
    ) -> None:
        """The first event: the number of examples of this worker and their classes.

        arrival: how this generation of workers came about, where it is not the first.
        """
        event = "membership" if arrival is not None else "resume" if resumed else "start"
        self.emit(event, examples=examples, classes=classes, **(arrival or {}))
        if arrival is not None and self.console is not None:
            self.console.changed(arrival)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event with the worker and its counters."""
        if self.handle is None:
            return
        clock, comm = self.clock, self.comm
        line = {
            "event": event,
            "worker": comm.worker,
            "step": clock.step,
            "epoch": clock.epoch,
            "samples": clock.samples,
            "rounds": clock.rounds,
            "messages": comm.ledger.messages,
            "bytes": comm.ledger.bytes,
            "seconds": round(clock.seconds, 6),
            "simulated_seconds": round(comm.now, 9) if self.described else None,
            **{name: round(seconds, 9) for name, seconds in comm.ledger.spent.items()},
            "time": round(time.time(), 3),
            **fields,
        }
        os.write(self.handle, (json.dumps(plain(line)) + "\n").encode())

    def stepped(self, loss: float, losses: list[float] | None = None) -> None:
        """Log a step: the loss of this worker and, if known, those of all workers."""
        clock = self.clock
        self.emit("step", loss=loss, lr=clock.lr, batch=clock.batch)
        if self.console is None and self.board is None:
            return
        present = [value for value in losses or [loss] if not math.isnan(value)]
        mean = sum(present) / len(present) if present else math.nan
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
                    self.board.add_scalar(f"{metric}/{name}", value, self.clock.step)

    def finished(self, result: dict[str, Any]) -> None:
        if result["models"]:
            self.evaluated(result["models"], result["health"])
        self.emit("stopped" if result["stopped"] else "end", consensus=result["consensus"])
        if self.first and self.folder is not None and not result["stopped"]:
            temporary = self.folder / ".result.partial"
            temporary.write_text(
                json.dumps(plain({k: v for k, v in result.items() if k != "stopped"}), indent=1) + "\n"
            )
            temporary.replace(self.folder / "result.json")


def class_counts(labels: npt.NDArray[Any] | None, block: npt.NDArray[Any] | None) -> list[int] | None:
    """The number of examples of each class in a block; None if there is none, or no classes, or very many."""
    if labels is None or block is None or labels.min() < 0 or labels.max() >= _CLASSES:
        return None
    counts: list[int] = np.bincount(labels[block], minlength=int(labels.max()) + 1).tolist()
    return counts


def plain(value: Any) -> Any:
    """A value that JSON can store: NaN and infinities become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
