"""A partition is computed once, by one worker, and is the same on all of them."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.errors import UserError
from ..data.view import MODEL, DatasetView
from ..partition.base import Partition

if TYPE_CHECKING:
    from ..comm.base import Comm
    from .job import Job


def speeds_are_measured(partition: Partition) -> bool:
    """Does it wait for the speeds of workers that run?"""
    return getattr(partition, "speeds", None) == "measured"


def waits_for_model(partition: Partition) -> bool:
    """Does it divide anew by the model, after the first epoch?"""
    return bool(getattr(partition, "features", None) == MODEL)


def with_speeds(partition: Partition, speeds: list[float] | None) -> Partition:
    """A partition that waits for speeds, with these; equal ones for a forecast without workers."""
    if not speeds_are_measured(partition):
        return partition
    return dataclasses.replace(partition, speeds=speeds)  # type: ignore[call-arg]  # measured ones are its option


def shared_blocks(partition: Partition, view: DatasetView, comm: Comm, seed: int) -> list[np.ndarray]:
    """Worker 0 computes the blocks, all receive them; what it refuses is raised on all."""
    if comm.size == 1:
        return partition.blocks(view, 1, seed)
    blocks, problem = [], None
    if comm.rank == 0:
        try:
            with comm.at_work():
                blocks = partition.blocks(view, comm.size, seed)
        except UserError as error:
            problem = error
    problem, sizes = comm.gather_objects((problem, [len(block) for block in blocks]))[0]
    if problem is not None:
        raise problem
    flat = torch.from_numpy(np.concatenate(blocks)) if blocks else torch.empty(view.examples, dtype=torch.int64)
    with comm.uncounted():
        comm.broadcast(flat)
    return np.split(flat.numpy(), np.cumsum(sizes)[:-1])


def job_blocks(job: Job, comm: Comm) -> list[np.ndarray]:
    """The blocks of a job: as it knows them, as its checkpoint had them, or computed, after measuring if need be."""
    # A worker that joins later does not know them: from then on all compute them together.
    first = comm.membership is None or comm.membership.roster.generation == 0
    if first and job.blocks is not None and len(job.blocks) == comm.size:
        return job.blocks
    if job.resume is not None and (speeds_are_measured(job.partition) or waits_for_model(job.partition)):
        kept = _kept_blocks(job.resume, comm)
        if kept is not None:
            return kept  # measured again, or by another model, they would be others
    if not speeds_are_measured(job.partition):
        return shared_blocks(job.partition, job.train.view(), comm, job.seed)
    from .speeds import settled_rates

    partition = with_speeds(job.partition, settled_rates(job, comm))
    started = time.perf_counter()
    blocks = shared_blocks(partition, job.train.view(), comm, job.seed)
    job.division_seconds = time.perf_counter() - started
    return blocks


def _kept_blocks(checkpoint: Path, comm: Comm) -> list[np.ndarray] | None:
    """Those of a checkpoint by as many workers."""
    from ..checkpoint.store import read_manifest, read_worker

    manifest = read_manifest(checkpoint)
    if manifest["workers"] != comm.size:
        return None
    own = read_worker(checkpoint, manifest, comm.rank)["position"]["block"]
    return [np.asarray(block, dtype=np.int64) for block in comm.gather_objects(own)]
