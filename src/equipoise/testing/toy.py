"""One small problem for every method: four classes in eight dimensions, a tanh net with dropout, 4 workers.

`train` runs it by `eq.train`, `attach` by a user's own loop with `eq.attach` and `eq.Sampler`: to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ..comm.base import Comm
from ..comm.membership import Elasticity
from ..comm.virtual_membership import Change
from ..config.defaults import chosen_period
from ..core.method import Configurable
from ..core.random import seed_torch, seed_worker
from ..launch.start import spawn
from ..loop.attach import attach as attach_to
from ..loop.sampler import Sampler
from ..loop.train import Run
from ..loop.train import train as train_job
from ..simulate.cluster import Cluster
from ..sync.periodic_average import PeriodicAverage

EXAMPLES, WORKERS, STEPS = 203, 4, 18  # an epoch of batches of 8 is 7 steps: the third has begun

_generator = torch.Generator().manual_seed(5)
INPUTS = torch.randn(EXAMPLES, 8, generator=_generator)
TARGETS = (INPUTS @ torch.randn(8, 4, generator=_generator)).argmax(1)


def model() -> nn.Module:
    seed_torch(11)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 4))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2)


def choices(method: Configurable) -> dict[str, Any]:
    """The method on its axis, with a batch size and, where it takes one, a period that puts it to work."""
    chosen: dict[str, Any] = {"batch": 8, method.axis: method}
    if method.axis == "sync" and not method.needs().every_step:  # type: ignore[attr-defined]
        chosen["period"] = 2
    if method.axis == "period":
        chosen["sync"] = PeriodicAverage()
    if method.axis == "wire":
        chosen |= {"sync": PeriodicAverage(), "period": 2}
    return chosen


def settings(method: Configurable) -> dict[str, Any]:
    """Arguments of `eq.train` that put this method to work."""
    return {"workers": WORKERS, "optimizer": optimizer, "deterministic": True, "log_every": 5, **choices(method)}


def train(method: Configurable, *, steps: int | None = STEPS, **changes: Any) -> Run:
    """The problem by `eq.train`; `changes` are arguments of it."""
    arguments = {**settings(method), "steps": steps, **changes}
    return train_job(model, nn.CrossEntropyLoss(), (INPUTS, TARGETS), **arguments)


def attach(
    method: Configurable,
    *,
    steps: int = STEPS,
    workers: int = WORKERS,
    virtual: bool = True,
    seed: int = 0,
    log: Path | None = None,
    cluster: Cluster | None = None,
    num_workers: int = 0,
    elastic: Elasticity | None = None,
    planned: Sequence[Change] = (),
    **changes: Any,
) -> dict[str, Any]:
    """The same by a user's own loop; the counters of its end.

    log: a folder; the loop then resumes from what is there, and writes a checkpoint at its end.
    num_workers: of the loader. elastic, planned: may workers come and go, and which do?
    changes: other choices, and arguments of `eq.attach`.
    """
    chosen = {**choices(method), **changes}
    drawn = {axis: chosen.pop(axis) for axis in ("partition", "order", "batch") if axis in chosen}
    lockstep = chosen_period(chosen.get("period")).lockstep
    data = TensorDataset(INPUTS, TARGETS)

    def loop(comm: Comm) -> dict[str, Any]:
        seed_worker(seed, comm.rank)
        net = model()
        sgd = optimizer(net.parameters())
        sampler = Sampler(data, seed=seed, **drawn)
        # A loader draws a number when it is iterated over; from its own generator, dropout masks stay as in eq.train.
        loader = DataLoader(data, batch_sampler=sampler, num_workers=num_workers, generator=torch.Generator())
        with attach_to(net, sgd, sampler=sampler, seed=seed, log=log, **chosen) as together:
            if log is not None:
                together.resume()
            over = ends(comm, together, steps, lockstep)
            ended = over()
            while not ended:
                for x, y in loader:
                    sgd.zero_grad()
                    with sampler.watching(net):
                        loss = nn.functional.cross_entropy(net(x), y)
                        loss.backward()  # type: ignore[no-untyped-call]
                    together.loss = loss.item()
                    sgd.step()
                    ended = over()
                    if ended:
                        break
            if log is not None:
                together.checkpoint()
        return together.outcome()

    how: dict[str, Any] = {"virtual": virtual, "cluster": cluster, "elastic": elastic, "changes": planned}
    result: dict[str, Any] = spawn(loop, workers, deterministic=True, **how)[0]
    return result


def ends(comm: Comm, together: attach_to, steps: int, lockstep: bool) -> Callable[[], bool]:
    """Has the loop reached its length? Workers that take their own numbers of steps agree at a round, on the sum."""

    def over() -> bool:
        if lockstep:
            return together.clock.step >= steps
        if not together.clock.due:
            return False
        with comm.uncounted():
            return bool(sum(comm.gather_objects(together.clock.step)) >= steps * comm.size)

    return over
