"""Evaluation of the three models that have names, and the result of a run.

- `local`: each worker's own parameters, metrics averaged over workers;
- `mean`: the average of all workers' parameters, weighted by their shares of the examples where the sync weighs so;
- `centre`: the centre variable, where the method has one.

Nothing here changes the training state: vectors are swapped in and back, buffers and generators are restored, and
neither the ledger nor the simulated clock moves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ..core.random import rng_state, set_rng_state
from ..core.vector import digest
from ..data.source import Source
from ..sync.shares import mean_of, shares_of

if TYPE_CHECKING:
    from .attach import attach
    from .worker import Worker

    Trained: TypeAlias = Worker | attach

_CHUNK = 512  # examples per forward pass
_BLOCK = 1 << 20  # parameters averaged at once


def evaluate(worker: Worker, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Loss and metrics of the named models on the test data (the training data where there is none)."""
    source = worker.job.test if worker.job.test is not None else worker.job.train
    found = {}
    with worker.comm.uncounted(), undisturbed(worker):
        for name in names:
            vector = vector_of(worker, name)
            if vector is None:
                continue
            with swapped(worker, vector, own=name == "local"):
                if name != "local" and worker.job.buffers == "recompute":
                    _recompute(worker)
                # Workers share the work on a model they all hold; each evaluates its own alone.
                shared = name != "local"
                indices = (
                    np.arange(len(source))[worker.comm.rank :: worker.comm.size] if shared else np.arange(len(source))
                )
                sums = _sums(worker, source, indices)
                totals = worker.comm.gather(sums).sum(0)
            count = float(totals[0])
            found[name] = {"loss": float(totals[1]) / count}
            if not torch.isnan(totals[2]):
                found[name]["accuracy"] = float(totals[2] / totals[3])
    return found


def vector_of(worker: Trained, name: str) -> torch.Tensor | None:
    """The parameters of a named model, as a vector of their own."""
    if name == "local":
        return worker.flat.gather().clone()
    if name == "mean":
        return _mean(worker)
    centre = worker.sync.centre()
    return None if centre is None else centre.clone()


def _mean(worker: Trained) -> torch.Tensor:
    """In double precision, a block at a time: the mean of equal models is that model to the bit, on any number of workers."""
    x = worker.flat.gather()
    if worker.comm.size == 1:
        return x.clone()
    shares = shares_of(worker.context) if worker.context.mean_by_share else []
    mean = torch.empty_like(x)
    for start in range(0, len(x), _BLOCK):
        part = slice(start, start + _BLOCK)
        mean[part] = mean_of(worker.context, x[part].to(torch.float64, copy=True), shares)
    return mean


@contextlib.contextmanager
def undisturbed(worker: Worker) -> Iterator[None]:
    rng, training = rng_state(), worker.model.training
    worker.model.eval()
    try:
        yield
    finally:
        worker.model.train(training)
        set_rng_state(rng)


@contextlib.contextmanager
def swapped(worker: Trained, vector: torch.Tensor, own: bool) -> Iterator[None]:
    """The model with other parameters and, unless they are the worker's `own`, with the mean of all workers' buffers."""
    flat, buffers = worker.flat, worker.buffers
    saved = flat.gather().clone()
    kept = [b.clone() for b in worker.model.buffers()]
    try:
        flat.x.copy_(vector)
        flat.scatter()
        if not own and len(buffers):
            buffers.scatter(worker.comm.mean(buffers.gather()))
        yield
    finally:
        flat.x.copy_(saved)
        flat.scatter()
        for b, k in zip(worker.model.buffers(), kept, strict=True):
            b.copy_(k)


def _recompute(worker: Worker) -> None:
    """Re-estimate BatchNorm statistics: one pass over this worker's examples, averaged over workers."""
    recompute_statistics(worker.model, worker.job.train, worker.position.block, worker.job.device)
    worker.buffers.scatter(worker.comm.mean(worker.buffers.gather()))


def recompute_statistics(model: nn.Module, source: Source, indices: np.ndarray, device: torch.device) -> None:
    """Replace BatchNorm's running statistics by those of these examples; the model is left in eval mode."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # a cumulative average
        m.train()
    with torch.no_grad():
        # Equal parts: each weighs the same in the average, and none is a single example, which has no variance.
        for part in np.array_split(indices, -(-len(indices) // _CHUNK)):
            inputs, _ = source.batch(part)
            model(inputs.to(device))
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
        m.eval()


@torch.no_grad()
def _sums(worker: Worker, source: Source, indices: np.ndarray) -> torch.Tensor:
    """[examples, summed loss, right answers, answers] over `indices`."""
    count, loss, right, answers = 0, 0.0, 0.0, 0
    for start in range(0, len(indices), _CHUNK):
        inputs, targets = source.batch(indices[start : start + _CHUNK])
        inputs, targets = inputs.to(worker.job.device), targets.to(worker.job.device)
        outputs = worker.model(inputs)
        loss += float(worker.job.loss(outputs, targets)) * len(targets)
        count += len(targets)
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            right += float((outputs.argmax(-1) == targets).sum())
            answers += targets.numel()
    return torch.tensor([count, loss, right if answers or not count else math.nan, answers], dtype=torch.float64)


def consensus(worker: Worker) -> float:
    """Root mean square over workers of the distance to the mean model."""
    if worker.comm.size == 1:
        return 0.0
    with worker.comm.uncounted():
        x = worker.flat.gather()
        apart = _mean(worker).sub_(x)
        square = torch.linalg.vector_norm(apart, dtype=torch.float64).pow(2).reshape(1)
        return float(worker.comm.gather(square).mean().sqrt())


def health(worker: Worker) -> dict[str, float]:
    """Distance to consensus and what the methods declare worth watching. All workers call it together."""
    methods = (worker.order, worker.batch, worker.period, worker.sync)
    with worker.comm.uncounted():
        watched = {name: float(getattr(m, name)) for m in methods for name in m.HEALTH}
    return {"consensus": consensus(worker), **watched}


def finish(worker: Worker, stopped: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The result and the mean model with the buffers it was evaluated with: the same on every worker."""
    clock, comm = worker.clock, worker.comm
    with comm.uncounted():
        comm.ledger.sort_out(float(comm.gather(torch.tensor(comm.ledger.unsorted, dtype=torch.float64)).min()))
    models = {} if stopped else evaluate(worker, ("local", "mean", "centre"))
    if not stopped:
        worker.control.judge(models)
    with comm.uncounted():
        mean = vector_of(worker, "mean")
        assert mean is not None
        with undisturbed(worker), swapped(worker, mean, own=False):
            if worker.job.buffers == "recompute":
                _recompute(worker)
            model = {name: t.detach().cpu().clone() for name, t in worker.model.state_dict().items()}
    watched = health(worker)
    own = {
        "worker": comm.rank,
        "steps": clock.step,
        "samples": clock.samples,
        "rounds": clock.rounds,
        "messages": comm.ledger.messages,
        "bytes": comm.ledger.bytes,
        "seconds": clock.seconds,
        "simulated_seconds": comm.now if worker.job.described else None,
        **comm.ledger.spent,
        "failures": comm.ledger.failures,
    }
    rows = comm.gather_objects(own)
    result = {
        "steps": sum(r["steps"] for r in rows) // len(rows),
        "samples": sum(r["samples"] for r in rows),
        "epochs": sum(r["samples"] for r in rows) / len(worker.job.train),
        "rounds": max(r["rounds"] for r in rows),
        "messages": sum(r["messages"] for r in rows),
        "bytes": sum(r["bytes"] for r in rows),
        "seconds": max(r["seconds"] for r in rows),
        "simulated_seconds": max(r["simulated_seconds"] for r in rows) if worker.job.described else None,
        "models": models,
        "reached": worker.control.reached,
        "consensus": watched["consensus"],
        "health": watched,
        "params_sha256": digest(mean),
        "workers": rows,
        "stopped": stopped,
    }
    worker.observer.finished(result)
    return result, model
