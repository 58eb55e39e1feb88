"""The result of a run: the end of every counter, the metrics of every model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from ..checkpoint.weights import save_weights
from ..core.island import Island
from ..core.vector import digest
from .evaluate import evaluate, health, recompute_buffers, swapped, undisturbed, vector_of
from .snapshot import Done

if TYPE_CHECKING:
    from .step import Step
    from .worker import Worker


def counters(step: Step, *, described: bool = False, examples: int = 0, departed: Done | None = None) -> dict[str, Any]:
    """The end of every counter over all workers, and where the models are; all workers call it together.

    departed: what workers had done that were lost on the way.
    """
    departed = departed or Done()
    clock, comm = step.clock, step.comm
    with comm.uncounted():
        unattributed = torch.tensor(comm.ledger.unattributed, dtype=torch.float64)
        comm.ledger.attribute_wait(float(comm.gather(unattributed).min()))
        mean = vector_of(step, "mean")
    assert mean is not None
    watched, island = health(step), step.context.island
    messages, bytes = map(int, island.add(comm.ledger.messages, comm.ledger.bytes))
    own = {
        "worker": comm.worker,
        "steps": clock.step,
        "samples": clock.samples,
        "rounds": clock.rounds,
        "messages": messages,
        "bytes": bytes,
        "seconds": clock.seconds,
        "simulated_seconds": comm.now if described else None,
        **comm.ledger.spent,
        "failures": comm.ledger.failures,
    }
    rows = comm.gather_objects(own)
    samples = sum(row["samples"] for row in rows) + departed.samples
    return {
        "steps": sum(row["steps"] for row in rows) // len(rows),
        "samples": samples,
        "epochs": samples / (examples or step.context.worker.total_examples or samples or 1),
        "rounds": max(row["rounds"] for row in rows),
        "messages": sum(row["messages"] for row in rows) + departed.messages,
        "bytes": sum(row["bytes"] for row in rows) + departed.bytes,
        "seconds": max(row["seconds"] for row in rows),
        "simulated_seconds": max(row["simulated_seconds"] for row in rows) if described else None,
        "models": {},
        "reached": None,
        "consensus": watched["consensus"],
        "health": watched,
        "params_sha256": _digest(mean, island),
        "workers": rows,
        "stopped": 0,
    }


def _digest(mean: torch.Tensor, island: Island) -> str:
    """Of the mean model; of an island whose ranks hold shards, of the digests of these."""
    parts = island.told(digest(mean))
    return hashlib.sha256("".join(parts).encode()).hexdigest() if island.sharded else parts[0]


def finish(worker: Worker, stopped: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The result and the mean model with the buffers it was evaluated with: the same on every worker."""
    comm, step = worker.comm, worker.stepper
    models = {} if stopped else evaluate(step, worker.task, ("local", "mean", "centre"))
    if not stopped:
        worker.control.judge(models)
    with comm.uncounted():
        mean = vector_of(step, "mean")
        assert mean is not None
        with undisturbed(worker.model), swapped(step, mean, own=False):
            recompute_buffers(step, worker.task)
            model = {name: t.detach().cpu().clone() for name, t in worker.model.state_dict().items()}
    result = counters(step, described=worker.job.described, examples=len(worker.job.train), departed=worker.departed)
    if comm.membership is not None:
        result["membership"] = worker.history
    result |= {"models": models, "reached": worker.control.reached, "stopped": stopped}
    result |= worker.position.counts(result["samples"])
    if worker.observer.keeps and worker.job.folder is not None:
        save_weights(model, worker.job.folder / "model.pt")
    worker.observer.finished(result)
    return result, model
