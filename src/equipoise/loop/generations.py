"""The generations of a run: train until workers come or go, and go on with those who are there."""

from __future__ import annotations

from typing import Any

import torch

from ..comm.base import Comm
from ..comm.current import set_current
from ..comm.membership import Membership
from ..core.errors import PeerLost, TooFew
from .agreement import Agreement, MembersChange
from .handover import Spent, Transition
from .job import Job
from .snapshot import Snapshots
from .worker import Worker


def train_worker(job: Job, comm: Comm) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Train to the end as one worker; the result and the mean model."""
    if comm.membership is None:
        return Worker(job, comm).run()
    return _Generations(job, comm.membership).run()


class _Generations:
    """One worker on its way through them."""

    def __init__(self, job: Job, membership: Membership):
        self.job, self.membership = job, membership
        self.snapshots = Snapshots()
        self.worker: Worker | None = None  # of the last generation that has begun

    def run(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        membership = self.membership
        transition = Transition(membership)
        comm = membership.enter() if membership.waiting else membership.comm
        while True:
            set_current(comm)
            try:
                worker = self._begin(comm, transition)
                if not membership.enough:
                    raise self._too_few(worker)
                transition = Transition(membership)
                return worker.run()
            except PeerLost:
                transition.begin("loss")
            except MembersChange:
                transition.begin("join")
            comm = membership.reform()

    def _begin(self, comm: Comm, transition: Transition) -> Worker:
        """This worker, where the generation begins."""
        before, job, snapshots = self.worker, self.job, self.snapshots
        point = transition.agree(comm, snapshots)
        spent = Spent.of(before.stepper) if before is not None else None
        worker = Worker(job, comm, before=before, begins=point is None)
        if point is not None:
            parts = worker.parts()
            worker.arrival = transition.hand_over(parts, spent, snapshots, point, job.seed)
            worker.adopt(parts)
        worker.agreement = Agreement(self.membership, snapshots, job.leave)
        worker.agreement.begin(worker.parts())
        self.worker = worker
        return worker

    def _too_few(self, worker: Worker) -> TooFew:
        """Keep the last agreed round, and end."""
        left, least = len(self.membership.roster.members), self.membership.elasticity.least
        assert worker.arrival is not None
        missing = "; ".join(row["text"] for row in worker.arrival["lost"]) or "the others did not come"
        where = ""
        if worker.store is not None:
            with worker.observer:
                worker.observer.started(resumed=False, examples=0, classes=None, arrival=worker.arrival)
                worker.save()
            where = f"; step {worker.clock.step}, the last one that all had agreed on, is saved in {worker.job.folder}"
        return TooFew(f"{left} workers are left and the run needs {least}: {missing}{where}", None, worker.clock.step)
