"""What a worker reports: events to a file, progress to the console, numbers to trackers."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..comm.base import Comm
from ..core.clock import Clock
from ..core.writing import append, begin_line, writing
from .console import Console
from .tracker import Tracker

_CLASSES = 100  # with more, the labels are tokens rather than classes


class Observer:
    """One worker's events, appended to RUN/events.jsonl; worker 0 also drives the console and the trackers.

    described: a cluster is described, so events carry simulated seconds. choices: what trackers are told of the run.
    speaks: False for a process whose worker is reported by another one.
    """

    def __init__(
        self,
        comm: Comm,
        clock: Clock,
        folder: Path | None,
        *,
        described: bool = False,
        console: Console | None = None,
        trackers: Sequence[Tracker] = (),
        choices: Mapping[str, Any] | None = None,
        speaks: bool = True,
    ):
        self.speaks = speaks
        self.clock, self.folder, self.described = clock, folder, described
        self._console, self._trackers, self._choices = console, trackers, choices or {}
        self._started = False  # the trackers
        self.follow(comm)
        self.keeps = self.first  # does this worker write what all have in common to its folder?
        self.handle: int | None = None

    def follow(self, comm: Comm) -> None:
        """Report for this comm: the first worker may be another one than before."""
        self.comm, self.first = comm, self.speaks and comm.rank == 0
        self.console = self._console if self.first else None
        self.trackers = self._trackers if self.first else ()

    def __enter__(self) -> Observer:
        if self.folder is not None and self.speaks:
            # One write per line to a file opened for appending: lines of different workers do not interleave.
            path = self.folder / "events.jsonl"
            with writing(path):
                self.handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                begin_line(self.handle)
        if self.console is not None:
            self.console.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console is not None:
            self.console.__exit__(*error)
        if self._started:
            for tracker in self._trackers:
                tracker.stop()
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
        handle = self.handle
        if handle is None or self.folder is None:
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
        with writing(self.folder / "events.jsonl"):
            append(handle, (json.dumps(plain(line)) + "\n").encode())

    def stepped(self, loss: float, losses: list[float] | None = None) -> None:
        """Log a step: the loss of this worker and, if known, those of all workers."""
        clock = self.clock
        self.emit("step", loss=loss, lr=clock.lr, batch=clock.batch)
        if self.console is None and not self.trackers:
            return
        present = [value for value in losses or [loss] if not math.isnan(value)]
        mean = sum(present) / len(present) if present else math.nan
        if self.console is not None:
            self.console.stepped(mean)
        counters = {"lr": clock.lr, "samples": clock.samples, "rounds": clock.rounds, "bytes": self.comm.ledger.bytes}
        self._track({"loss/train": mean, **counters})

    def evaluated(self, models: dict[str, dict[str, float]], health: dict[str, float]) -> None:
        if not self.first:
            return
        self.emit("evaluate", models=models, health=health)
        if self.console is not None:
            self.console.evaluated(models)
        metrics = {f"{metric}/{name}": value for name, row in models.items() for metric, value in row.items()}
        self._track(metrics | {f"health/{name}": value for name, value in health.items()})

    def _track(self, values: dict[str, float]) -> None:
        for tracker in self.trackers:
            if not self._started:
                tracker.start(self.folder, self._choices)
            tracker.log(values, self.clock.step)
        self._started = self._started or bool(self.trackers)

    def finished(self, result: dict[str, Any]) -> None:
        if result["models"]:
            self.evaluated(result["models"], result["health"])
        self.emit("stopped" if result["stopped"] else "end", consensus=result["consensus"])
        if self.keeps and self.folder is not None and not result["stopped"]:
            text = json.dumps(plain({k: v for k, v in result.items() if k != "stopped"}), indent=1) + "\n"
            temporary, path = self.folder / ".result.partial", self.folder / "result.json"
            with writing(path):
                temporary.write_text(text)
                temporary.replace(path)


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
