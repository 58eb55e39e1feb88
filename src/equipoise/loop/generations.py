"""The generations of a run: train until workers come or go, and go on with those who are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..checkpoint.store import available
from ..comm.base import Comm
from ..comm.current import set_current
from ..comm.membership import Membership
from ..core.errors import PeerLost, TooFew
from .agreement import Agreement, MembersChange
from .drift import let_in, passport
from .handover import Spent, Transition
from .job import Job, settings_of
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
        if membership.waiting:
            let_in(membership, passport(settings_of(self.job)))
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
        if point is None and self.membership.begun:
            job.resume = self._last_checkpoint(comm)
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

    def _last_checkpoint(self, comm: Comm) -> Path:
        """Where to go on when all workers are lost that knew where the run was."""
        folder = self.job.folder
        names = [path.name for path in available(folder)] if folder is not None and comm.rank == 0 else []
        names = list(comm.gather_objects(names)[0])
        if not names or folder is None:
            raise TooFew("all workers are lost that knew where the run was, and there is no checkpoint: start it again")
        return folder / "checkpoints" / str(names[-1])

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
