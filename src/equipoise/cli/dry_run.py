"""`--dry-run`: the resolved recipe and its communication cost, without a single step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config.recipe import Recipe
from ..config.registry import name_of
from ..core.vector import Flat, ModelSize
from ..loop.blocks import with_speeds
from ..loop.from_recipe import assemble, settled
from ..loop.job import Job
from ..loop.nonfinite import agreement_cost
from ..loop.pace import first_batches
from ..loop.segment import steps_of
from ..period.every import Every
from ..sync.base import Sync
from ..sync.none import NoSync

_ROUNDS = 60  # over which costs are averaged where they differ: one round in 2, 3, 4, 5 or 6 may cost more


def forecast(recipe: Recipe) -> str:
    """The recipe as TOML; the cost follows in comments, so that the output is a recipe file."""
    recipe = settled(recipe)
    job, how = assemble(recipe)
    rows = cost(job, how["workers"])
    width = max(len(name) for name, _ in rows) + 2
    return recipe.text() + "\n" + "\n".join(f"# {name:<{width}}{value}" for name, value in rows)


def cost(job: Job, workers: int) -> list[tuple[str, str]]:
    flat = Flat(job.model())
    size = flat.size._replace(wire=None if job.wire.plain else job.wire)
    sync = job.sync if workers > 1 else NoSync()
    without_round, with_round = (total_cost(sync, size, workers, due) for due in (False, True))
    agreement = agreement_cost(job.nonfinite, sync, workers)
    with_round = [sent + workers * more for sent, more in zip(with_round, agreement, strict=True)]
    rows = [
        ("parameters", f"{len(flat):,} of {flat.size.itemsize} bytes"),
        ("examples", f"{len(job.train):,} on {workers} workers"),
        ("steps per epoch", f"{steps_per_epoch(job, workers):,} at the initial batch sizes"),
        ("step without a round", _format(without_round)),
        ("step with a round", _format(with_round)),
    ]
    if isinstance(job.period, Every):
        average = [a + (b - a) / job.period.steps for a, b in zip(without_round, with_round, strict=True)]
        rows.append(("step on average", _format(average)))
    if size.wire is not None and with_round[1]:
        plain = total_cost(sync, flat.size, workers, True)[1]
        rows.append((f"wire {name_of(job.wire)}", f"{plain / with_round[1]:.3g} times fewer bytes than {plain:,.0f}"))
    return rows


def total_cost(sync: Sync, size: ModelSize, workers: int, due: bool) -> list[float]:
    """Messages and bytes that all workers send in a step; the mean over rounds where these differ."""
    rounds = range(_ROUNDS) if len({sync.cost(size, 0, workers, due, round) for round in range(_ROUNDS)}) > 1 else [0]
    costs = [sync.cost(size, rank, workers, due, round) for rank in range(workers) for round in rounds]
    return [sum(column) / len(rounds) for column in zip(*costs, strict=True)]


def steps_per_epoch(job: Job, workers: int) -> int:
    """Until the last worker has finished its block (with drop_last, its full batches), or all their common list."""
    blocks = with_speeds(job.partition, None).blocks(job.train.view(), workers, job.seed)
    sizes = first_batches(job, workers, blocks)
    if job.partition.claimed:
        return -(-sum(map(len, blocks)) // sum(sizes))
    return steps_of(np.array([len(block) for block in blocks]), np.array(sizes), job.drop_last)


def _format(pair: list[Any]) -> str:
    messages, bytes = pair
    return f"{messages:,.6g} messages, {bytes:,.0f} bytes sent by all workers for the sync"
