"""The run that faults happen to: small, on processes, with a journal of every example that it trains on."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.config import registry
from equipoise.core.random import seed_torch
from equipoise.observe.events import read_events

from .victim import patient

EXAMPLES, WORKERS, EPOCHS, BATCH = 61, 3, 4, 4  # six steps an epoch
STEPS, STEPS_OF_EPOCH, LOGGED = 24, 6, 4
PAUSE = 0.004  # seconds of each batch, so that there is a moment to strike at
_generator = torch.Generator().manual_seed(3)
INPUTS = torch.randn(EXAMPLES, 5, generator=_generator)
LABELS = (INPUTS @ torch.randn(5, 3, generator=_generator)).argmax(1)
DATA = INPUTS, torch.arange(EXAMPLES)  # the target of an example is its number: the journal needs it

SYNCS = registry.names("sync")


def model() -> nn.Module:
    seed_torch(5)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))


def choices(sync: str) -> dict[str, Any]:
    method = registry.get("sync", sync)()
    return {"sync": method, "period": 1 if method.needs().every_step else 2}


class Line(NamedTuple):
    """One batch."""

    life: int  # of a run that is resumed; in an elastic one, the generation
    worker: int
    pid: int
    milliseconds: int  # on a clock that all processes share
    step: int
    examples: tuple[int, ...]


class Journal:
    """Which examples were trained on, by whom and at which step. One write for each batch, so that a kill keeps it."""

    def __init__(self, path: Path, pause: float = PAUSE, lr: float = 0.2):
        self.path, self.pause, self.lr = path, pause, lr
        self.life = 0
        self.hangs: tuple[int, int] | None = None  # worker and step at which it does, in the loss
        self._handles: dict[int, int] = {}

    def loss(self, outputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # not while models are evaluated
            self._write(" ".join(map(str, numbers.tolist())))
            time.sleep(self.pause if self.hangs != (current_comm().rank, current_comm().step) else 3600)
        return nn.functional.cross_entropy(outputs, LABELS[numbers])

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """Called once by every worker, before its first step."""
        self._write("")
        return torch.optim.SGD(parameters, lr=self.lr, momentum=0.5)

    def _write(self, examples: str) -> None:
        comm = current_comm()
        life, worker = self.life, comm.rank
        if comm.membership is not None:
            life, worker = comm.membership.roster.generation, comm.membership.worker
        if os.getpid() not in self._handles:
            self._handles[os.getpid()] = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        line = f"{life} {worker} {os.getpid()} {int(1000 * time.monotonic())} {comm.step} {examples}\n"
        os.write(self._handles[os.getpid()], line.encode())

    def lines(self, life: int | None = None) -> list[Line]:
        text = self.path.read_text() if self.path.exists() else ""
        rows = [tuple(map(int, row.split())) for row in text.splitlines()]
        lines = [Line(*row[:5], row[5:]) for row in rows]
        return [line for line in lines if life is None or line.life == life]

    def step(self, life: int) -> int:
        """The last step that any worker has begun."""
        return max((line.step for line in self.lines(life)), default=0)

    def workers(self, life: int) -> dict[int, int]:
        """Process ids."""
        return {line.worker: line.pid for line in self.lines(life)}

    def generation(self) -> int:
        return max((line.life for line in self.lines()), default=0)

    def last_step(self) -> int:
        return self.step(self.generation())

    def present(self) -> dict[int, int]:
        """Process ids of those who train in the last generation."""
        return self.workers(self.generation())

    def agreed_in(self, history: list[dict[str, Any]]) -> list[Line]:
        """What counts in an elastic run with this history. A generation that it does not name begins the run."""
        begun = {row["generation"]: row["step"] for row in history}
        return self.agreed({line.life: 0 for line in self.lines()} | begun)

    def agreed(self, resumed: dict[int, int]) -> list[Line]:
        """What counts, where life number k went on from the end of step `resumed[k]`."""
        kept: list[Line] = []
        for life in sorted(resumed):
            kept = [line for line in kept if line.step <= resumed[life]]
            kept += [line for line in self.lines(life) if line.examples]
        return kept


def lost_and_repeated(lines: list[Line], epochs: int = EPOCHS) -> int:
    """Examples that are not trained on exactly once in each epoch."""
    visited = [example for line in sorted(lines, key=lambda line: line.step) for example in line.examples]
    wrong = 0
    for epoch in range(epochs):
        counts = Counter(visited[epoch * EXAMPLES : (epoch + 1) * EXAMPLES])
        wrong += sum(abs(counts[example] - 1) for example in range(EXAMPLES))
    return wrong + max(0, len(visited) - epochs * EXAMPLES)


def train(folder: Path, sync: str, journal: Journal, *, resume: bool | int = False, **how: Any) -> eq.Run:
    arguments: dict[str, Any] = {
        **choices(sync),
        **{"workers": WORKERS, "epochs": EPOCHS, "batch": BATCH, "checkpoint_every": 2, "log_every": LOGGED},
        **{"deterministic": True, "virtual": False, "timeout": patient(60.0), "out": folder, "resume": resume},
        **how,
    }
    return eq.train(model, journal.loss, DATA, optimizer=journal.optimizer, **arguments)


@cache
def undisturbed(sync: str) -> str:
    """The hash of the mean model where nothing happens."""
    quiet = Journal(Path(os.devnull))
    return str(train(Path(), sync, quiet, virtual=True, out=None).result["params_sha256"])


def log_of(run: Path) -> dict[int, list[int]]:
    """By worker, the steps in the log of a run, read as one history."""
    steps: dict[int, list[int]] = {}
    for event in read_events(run):
        if event["event"] == "step":
            steps.setdefault(event["worker"], []).append(event["step"])
    return steps


WHOLE_LOG = {rank: list(range(LOGGED, STEPS + 1, LOGGED)) for rank in range(WORKERS)}


def resume_point(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    from equipoise.checkpoint.store import available

    found = available(folder)
    return int(found[-1].name.removeprefix("step-")) if found else 0
