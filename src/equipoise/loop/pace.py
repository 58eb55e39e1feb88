"""What suits the links of a described cluster, where the user has chosen neither rounds nor a period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..comm.virtual import VirtualComm, World
from ..core.context import Context, describe
from ..core.vector import Flat
from ..simulate.cluster import Cluster, Traffic
from ..sync.gossip import Gossip
from ..sync.mixing import message_bytes
from .blocks import with_speeds
from .positions import sizes_of

if TYPE_CHECKING:
    from .job import Job


def pace(job: Job, cluster: Cluster, workers: int) -> tuple[dict[str, Any], int] | None:
    """Options of the sync and a period; None where the sync has nothing to choose."""
    sync = job.sync
    if workers < 2 or not isinstance(sync, Gossip) or sync.suit(workers, 1.0, 0.0) is None:
        return None
    size = Flat(job.model()).size._replace(wire=None if job.wire.plain else job.wire)
    sizes = first_batches(job, workers, with_speeds(job.partition, None).blocks(job.train.view(), workers, job.seed))
    step = max(cluster.compute(rank, examples) for rank, examples in enumerate(sizes))
    graph, traffic, bytes = sync.topology.on(workers), Traffic(cluster), message_bytes(size, sync.vectors)
    sent = [dict.fromkeys((peer for peer, _ in graph.targets(0, rank)), bytes) for rank in range(workers)]
    arrivals = [traffic.send(rank, 0.0, messages) for rank, messages in enumerate(sent)]
    return sync.suit(workers, step, max(time for found in arrivals for time in found.values()))


def first_batches(job: Job, workers: int, blocks: list[np.ndarray]) -> list[int]:
    """The batch sizes with which a run begins."""
    world = World(workers)
    comm = VirtualComm(world, world.workers[0])
    worker = describe(comm, seed=job.seed, sizes=sizes_of(job.partition, job.batch, blocks))
    return job.batch.bind(Context(comm, worker=worker)).sizes()
