"""Blocks by what the model has learned: after the first epoch, the input of its last layer says what is alike."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import UserError
from .blocks import shared_blocks, waits_for_model
from .evaluate import swapped, undisturbed, vector_of
from .position import Position
from .rebalance import adopt

if TYPE_CHECKING:
    from ..partition.base import Partition
    from .worker import Worker


def relearn(worker: Worker) -> None:
    """Called by all workers together before an epoch begins. The blocks keep their sizes."""
    partition, step, job = worker.job.partition, worker.stepper, worker.job
    if not waits_for_model(partition) or worker.clock.epoch != 1:
        return
    assert isinstance(worker.position, Position)
    sizes = [float(len(block)) for block in worker.position.blocks]
    before, view = worker.position.blocks, job.train.view()
    problem: UserError | None = None
    with step.comm.uncounted(), undisturbed(step.model):
        mean = vector_of(step, "mean")
        assert mean is not None
        with swapped(step, mean, own=False), step.comm.at_work():
            if step.comm.rank == 0:
                try:
                    partition = _learned(partition, worker, view, sizes)
                except UserError as error:
                    problem = error
    problem = step.comm.gather_objects(problem)[0]
    if problem is not None:
        raise problem
    blocks = shared_blocks(partition, view, step.comm, job.seed)
    if step.comm.rank == 0:
        worker.observer.emit("partition", **_distances(partition, view, before, blocks))
    adopt(worker, blocks)


def _learned(partition: Partition, worker: Worker, view: Any, sizes: list[float]) -> Partition:
    """The partition with the features of the model as it is now."""
    from ..data.features import Given, penultimate

    rows = penultimate(worker.model, device=str(worker.device))(view)
    return dataclasses.replace(partition, features=Given(rows), speeds=sizes)  # type: ignore[call-arg]


def _distances(partition: Any, view: Any, before: list[np.ndarray], after: list[np.ndarray]) -> dict[str, float | None]:
    """Squared MMD of the blocks in these features, in units of stratified random blocks."""
    from ..data.features import feature_array
    from ..partition.audit import audit, summary
    from ..partition.strata import strata

    features, groups = feature_array(view, partition.features), strata(view, partition.bins, len(after))[0]
    ratios = [summary(audit(features, groups, blocks, partition.speeds, splits=5)) for blocks in (before, after)]
    return {"mmd2_ratio_before": ratios[0]["mmd2_ratio"], "mmd2_ratio": ratios[1]["mmd2_ratio"]}
