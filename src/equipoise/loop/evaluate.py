"""Evaluation of the three models that have names.

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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..core.device import on_host, widest
from ..core.errors import UserError
from ..core.random import rng_state, set_rng_state
from ..data.source import Source
from ..data.training_loss import TrainingLoss, called, divided, moved, number, right_answers
from ..sync.shares import mean_of

if TYPE_CHECKING:
    from .step import Step

_CHUNK = 512  # examples per forward pass
_BLOCK = 1 << 20  # parameters averaged at once


class EvaluationTask(NamedTuple):
    """What models are evaluated on."""

    source: Source
    training_loss: TrainingLoss
    device: torch.device = torch.device("cpu")
    statistics: tuple[Source, np.ndarray] | None = None  # examples from which BatchNorm statistics are recomputed first


def evaluate(step: Step, task: EvaluationTask, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Loss and metrics of the named models. All workers call it together and get the same numbers."""
    comm, everything = step.comm, np.arange(len(task.source))
    metrics: dict[str, dict[str, float]] = {}
    with comm.uncounted(), undisturbed(step.model):
        for name in names:
            vector = vector_of(step, name)
            if vector is None:
                continue
            own = name == "local"
            with swapped(step, vector, own=own):
                if not own:
                    recompute_buffers(step, task)
                # Workers share the work on a model they all hold; each evaluates its own alone.
                indices = everything if own else everything[comm.rank :: comm.size]
                totals = comm.gather(_sums(step.model, task, indices)).sum(0)
            metrics[name] = _metrics(task.training_loss, totals)
    return metrics


def _metrics(training_loss: TrainingLoss, totals: torch.Tensor) -> dict[str, float]:
    """Means over all examples, from the sums of all workers."""
    found = {"loss": float(totals[1]) / float(totals[0])}
    if not torch.isnan(totals[2]):
        found["accuracy"] = float(totals[2] / totals[3])
    if training_loss.perplexity:
        found["perplexity"] = math.exp(min(found["loss"], 700.0))  # beyond that a float overflows
    return found | {
        name: float(total / totals[0]) for name, total in zip(training_loss.metrics, totals[4:], strict=True)
    }


def vector_of(step: Step, name: str) -> torch.Tensor | None:
    """The parameters of a named model, as a vector of their own."""
    if name == "local":
        return step.flat.gather().clone()
    if name == "mean":
        return _mean(step)
    centre = step.sync.centre()
    return None if centre is None else centre.clone()


def existing_vector_of(step: Step, name: str) -> torch.Tensor:
    """The same, of a model that there must be."""
    vector = vector_of(step, name)
    if vector is None:
        raise UserError(f"{type(step.sync).__name__} has no {name}: evaluate local or mean")
    return vector


def _mean(step: Step) -> torch.Tensor:
    """In double precision, a block at a time: the mean of equal models is that model to the bit, on any number of
    workers.
    """
    x = step.flat.gather()
    if step.comm.size == 1:
        return x.clone()
    shares, exact = step.sync.mean_shares(), widest(x.device) == torch.float64
    mean = torch.empty_like(x)
    for start in range(0, len(x), _BLOCK):
        part = slice(start, start + _BLOCK)
        wide = x[part].to(torch.float64, copy=True) if exact else on_host(x[part])
        mean[part] = mean_of(step.context, wide, shares).to(mean.dtype)
    return mean


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In eval mode; afterwards the mode and the random generators are as before."""
    rng, training = rng_state(), model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
        set_rng_state(rng)


@contextlib.contextmanager
def swapped(step: Step, vector: torch.Tensor, own: bool) -> Iterator[None]:
    """The model with other parameters and, unless they are the worker's `own`, with the mean of all buffers."""
    flat = step.flat
    saved = flat.gather().clone()
    kept = [b.clone() for b in step.model.buffers()]
    try:
        flat.x.copy_(vector)
        flat.scatter()
        if not own:
            step.average_buffers()
        yield
    finally:
        flat.x.copy_(saved)
        flat.scatter()
        for b, k in zip(step.model.buffers(), kept, strict=True):
            b.copy_(k)


def hold(step: Step, name: str) -> None:
    """From now on every worker holds the model of this name. All workers call it together."""
    step.guard.meet()
    with step.comm.uncounted():
        step.flat.x.copy_(existing_vector_of(step, "mean" if step.comm.size == 1 else name))
        step.flat.scatter()
        step.average_buffers()


def recompute_buffers(step: Step, task: EvaluationTask) -> None:
    """Re-estimate BatchNorm statistics, if asked for: one pass over this worker's examples, averaged over workers.

    Workers with other classes have other means, which are a part of the variance:  sum_i pi_i (var_i + (m_i - m)^2).
    """
    if task.statistics is None:
        return
    recompute_statistics(step.model, *task.statistics, task.device)
    norms = [m for m in _norms(step.model) if m.running_mean is not None and m.running_var is not None]
    own = [m.running_mean.clone() for m in norms]
    step.average_buffers()
    if norms:
        apart = [(mine - m.running_mean).square() for mine, m in zip(own, norms, strict=True)]
        between = torch.split(step.mean_by_data(torch.cat(apart)), [len(part) for part in apart])
        for m, part in zip(norms, between, strict=True):
            m.running_var.add_(part)


def _norms(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def recompute_statistics(model: nn.Module, source: Source, indices: np.ndarray, device: torch.device) -> None:
    """Replace BatchNorm's running statistics by those of these examples; the model is left in eval mode."""
    norms = _norms(model)
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # a cumulative average
        m.train()
    with torch.no_grad():
        # Parts of sorted examples would have other means, whose variance is in none of them.
        shuffled = np.random.default_rng(0).permutation(indices)
        # Equal parts: each weighs the same in the average, and none is a single example, which has no variance.
        for part in np.array_split(shuffled, -(-len(indices) // _CHUNK)):
            called(model, divided(moved(source.batch(part), device))[0])
    for m, momentum in zip(norms, momenta, strict=True):
        m.momentum = momentum
        m.eval()


@torch.no_grad()
def _sums(model: nn.Module, task: EvaluationTask, indices: np.ndarray) -> torch.Tensor:
    """[examples, summed loss, right answers, answers, summed metrics] over `indices`."""
    training_loss, count, loss, right, answers = task.training_loss, 0, 0.0, 0.0, 0
    metrics = dict.fromkeys(training_loss.metrics, 0.0)
    for start in range(0, len(indices), _CHUNK):
        part = indices[start : start + _CHUNK]
        forward = training_loss.forward(model, moved(task.source.batch(part), task.device))
        loss += float(forward.loss) * len(part)
        count += len(part)
        for name, metric in training_loss.metrics.items():
            metrics[name] += number(name, metric(forward.outputs, forward.targets)) * len(part)
        found = right_answers(forward)
        right, answers = right + found[0], answers + found[1]
    known = right if answers or not count else math.nan
    return torch.tensor([count, loss, known, answers, *metrics.values()], dtype=torch.float64)


def consensus(step: Step) -> float:
    """Root mean square over workers of the distance to the mean model."""
    if step.comm.size == 1:
        return 0.0
    with step.comm.uncounted():
        x = step.flat.gather()
        apart = _mean(step).sub_(x)
        norm = torch.linalg.vector_norm(apart, dtype=widest(x.device))
        square = step.context.island.norms(norm).pow(2).reshape(1)
        return float(step.comm.gather(square).mean().sqrt())


def health(step: Step) -> dict[str, float]:
    """Distance to consensus and what the methods declare worth watching. All workers call it together."""
    methods = [m for m in (step.order, step.batch, step.period, step.sync) if m is not None]
    with step.comm.uncounted():
        watched = {name: float(getattr(m, name)) for m in methods for name in m.HEALTH}
    return {"consensus": consensus(step), **watched}
