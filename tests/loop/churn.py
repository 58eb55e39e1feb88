"""Runs in which workers are lost and join: on virtual workers as planned, on processes by signals to themselves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from equipoise.comm.membership import Elasticity
from equipoise.comm.process import ProcessComm
from equipoise.comm.virtual_membership import Change
from equipoise.config.defaults import chosen_batch, chosen_period
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.train import Run, prepare, run_job
from equipoise.testing import toy

STEPS = 20


def make_job(method: Any, elastic: Elasticity, changes: Iterable[Change] = (), **options: Any) -> Job:
    chosen = {**toy.choices(method), "length": Length(steps=STEPS), "evaluate_every": 1000.0, **options}
    chosen |= {"batch": chosen_batch(chosen["batch"]), "period": chosen_period(chosen.get("period"))}
    job = Job(
        toy.model,
        nn.CrossEntropyLoss(),
        Source((toy.INPUTS, toy.TARGETS)),
        optimizer=toy.optimizer,
        elastic=elastic,
        changes=list(changes),
        **chosen,
    )
    job.check_fit(toy.WORKERS)
    return job


def run(job: Job, *, virtual: bool = True, workers: int = toy.WORKERS, folder: Path | None = None) -> Run:
    if folder is not None:
        job.folder = folder
        prepare(job, False)
    return run_job(job, workers, virtual=virtual, cluster=None, deterministic=True, timeout=60.0)


def arrange(
    patch: pytest.MonkeyPatch, fates: dict[int, tuple[int, signal.Signals]], awaited: int | None = None
) -> None:
    """Let workers, by number, send themselves a signal after the gradient of a step. Forked ones inherit it.

    awaited: a generation with a newcomer, which takes its time to start. Steps of the one before are slow.
    """
    original, left = ProcessComm.computed, dict(fates)

    def computed(comm: ProcessComm, examples: float) -> float:
        step, number = left.get(comm.worker, (comm.step + 1, signal.SIGKILL))
        if comm.step >= step and comm.ledger.counting and not comm.membership.is_new:  # type: ignore[union-attr]
            del left[comm.worker]
            os.kill(os.getpid(), number)
        if awaited is not None and comm.membership.roster.generation == awaited - 1:  # type: ignore[union-attr]
            time.sleep(0.05)
        return original(comm, examples)

    patch.setattr(ProcessComm, "computed", computed)


def members(result: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """Where each generation began, and with whom."""
    return [(row["step"], row["members"]) for row in result["membership"]]
