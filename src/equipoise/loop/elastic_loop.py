"""Workers that come and go in a loop of the user's own.

A change takes place inside `optimizer.step()`: the model, the optimizer and the sampler return to the last point that
all workers have reached, the step in progress counts for nothing, and the loop goes on with the next batch. A worker
that joins waits in its own first `optimizer.step()`, so that all workers leave theirs at the same point of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..comm.base import Comm
from ..comm.current import set_current
from ..comm.membership import Membership
from ..core.errors import PeerLost, TooFew, UserError
from .agreement import Agreement, MembersChange
from .drift import let_in, passport
from .handover import Spent, Transition
from .own_loop import settings_of
from .snapshot import Done, Parts, Snapshots

if TYPE_CHECKING:
    from .attach import attach

Result = TypeVar("Result")


class ElasticLoop:
    """The membership of one `eq.attach`."""

    def __init__(self, loop: attach, membership: Membership):
        self.loop, self.membership = loop, membership
        self.snapshots = Snapshots()
        self.history: list[dict[str, object]] = []
        self.departed = Done()
        self.agreement: Agreement | None = None
        self._due = membership.waiting  # does the next step begin with a change?

    def begin(self) -> None:
        """The first generation, for a worker that is part of it."""
        if not self.membership.waiting:
            self._settle(self.membership.comm, Transition(self.membership), formed=True)

    def before_step(self) -> bool:
        """May the step be taken? Not if workers are let in first."""
        sampler = self.loop.sampler
        if sampler is not None and sampler.drawn > self.loop.accumulate:
            raise UserError(
                "the loader draws batches ahead of the steps, and with elastic they may go to another worker: use "
                "DataLoader(num_workers=0)"
            )
        if not self._due:
            return True
        transition = Transition(self.membership)
        if self.membership.waiting:
            let_in(self.membership, passport(settings_of(self.loop)))
            self._settle(self.membership.enter(), transition)
        else:
            transition.begin("join")
            self._settle(self.membership.reform(), transition)
        return False

    def after_step(self) -> None:
        """Agree that the step is done, where that is due. Epochs end together, whatever happens after them."""
        assert self.agreement is not None
        position = self.parts().position
        over = position is not None and self.loop.step.lockstep and position.steps_left == 0
        try:
            self.agreement.after_step(self.parts(), always=over)
        except MembersChange:
            self._due = not over

    def saved(self) -> None:
        """A checkpoint was written or read: all workers are here."""
        if self.agreement is not None:
            self.agreement.begin(self.parts())

    def lost(self, *, let_in: bool) -> None:
        """A worker was lost: go on without it."""
        transition = Transition(self.membership)
        transition.begin("loss")
        self._settle(self.membership.reform(let_in=let_in), transition)

    def attempt(self, call: str, function: Callable[[], Result], otherwise: Result) -> Result:
        """What all workers do together outside of a step; `otherwise` if one is lost and not all are here again."""
        try:
            return function()
        except PeerLost:
            self.lost(let_in=False)
        calls = self.loop.comm.gather_objects(call)
        return self.attempt(call, function, otherwise) if set(calls) == {call} else otherwise

    def begin_epoch(self, function: Callable[[], None]) -> None:
        """All workers begin it, sooner or later."""
        while True:
            try:
                return function()
            except PeerLost:
                self.lost(let_in=False)

    def parts(self) -> Parts:
        """What another generation of this loop goes on with."""
        loop, sampler = self.loop, self.loop.sampler
        plain = {"history": self.history, "departed": self.departed, "claimed": loop.claimed}
        others = {"scheduler": loop.scheduler}
        if sampler is None:
            return Parts(loop.step, None, others, plain)
        return Parts(loop.step, sampler.position, others, plain, sampler.taken_by_steps())

    def _settle(self, comm: Comm, transition: Transition, *, formed: bool = False) -> None:
        """Begin a generation; if that fails, the next one."""
        while True:
            set_current(comm)
            try:
                self._begin(comm, transition, formed)
                return
            except PeerLost:
                transition.begin("loss")
            comm, formed = self.membership.reform(), False

    def _begin(self, comm: Comm, transition: Transition, formed: bool) -> None:
        loop, snapshots = self.loop, self.snapshots
        point = transition.agree(comm, snapshots)
        if point is None and self.membership.begun:
            raise TooFew("all workers are lost that knew where the run was: start it again, and resume()")
        spent = Spent.of(loop.step) if snapshots.labels else None
        if not formed:
            loop.form(comm, equal=point is None)
        parts = self.parts()
        if point is not None:
            happened = transition.hand_over(parts, spent, snapshots, point, loop.seed)
            self._adopt(parts, happened)
            if not self.membership.enough:
                raise self._too_few(happened["lost"])
        self.agreement = Agreement(self.membership, snapshots)
        self.agreement.begin(self.parts())
        self._due = False

    def _adopt(self, parts: Parts, happened: dict[str, Any]) -> None:
        """Take over the plain values of another generation, or of another worker."""
        loop = self.loop
        self.history, self.departed = parts.plain["history"], parts.plain["departed"]
        if loop.sampler is not None:
            loop.sampler.epoch = loop.clock.epoch
        loop.observer.follow(loop.comm)
        if parts.plain["claimed"] and loop.log is not None:
            if loop.claimed:
                loop.store.leave()
            else:
                loop.observer.__enter__()
            loop.open_store()
        loop.rested()
        loop.observer.started(resumed=False, examples=loop.context.worker.examples, classes=None, arrival=happened)

    def _too_few(self, lost: list[dict[str, str]]) -> TooFew:
        """Keep the last agreed round, and end."""
        left, least = len(self.membership.roster.members), self.membership.elasticity.least
        missing = "; ".join(row["text"] for row in lost) or "the others did not come"
        where = f"; the last step that all had agreed on is saved in {self.loop.save()}" if self.loop.log else ""
        return TooFew(
            f"{left} workers are left and the run needs {least}: {missing}{where}", None, self.loop.clock.step
        )
