"""Who takes part. A run is a sequence of generations, and inside each of them the world is fixed.

A change of membership ends one generation and begins the next: the workers that are left, and those that wait to be
let in, agree on a roster and get a comm of that size. No sync, topology or wire sees anything but a fixed world.
`loop.generations` says what the workers carry from one generation to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.errors import UserError
from .base import Comm

DEADLINE = 30.0  # seconds
SNAPSHOT_EVERY = 16  # steps


@dataclass(frozen=True)
class Elasticity:
    """Between how many workers a run goes on, and how long the others wait for one that is silent.

    listen: HOST:PORT at which workers of other hosts can join a run that was started locally; this host alone if None.
    respawn: how many lost local workers are started again.
    snapshot_every: steps between two points to which workers can return, where every step is a round; otherwise every
        round is one.
    """

    least: int
    most: int
    deadline: float = DEADLINE
    listen: str | None = None
    respawn: int = 0
    snapshot_every: int = SNAPSHOT_EVERY

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError(f"elastic = {self.least}:{self.most}: write MIN:MAX with 1 <= MIN <= MAX, such as 2:8")
        if not self.deadline > 0:
            raise UserError(f"deadline = {self.deadline}: must be above zero")
        if self.respawn < 0:
            raise UserError(f"respawn = {self.respawn}: must not be negative")
        if self.snapshot_every < 1:
            raise UserError(f"snapshot_every = {self.snapshot_every}: at least 1 is needed")

    @classmethod
    def parse(cls, text: Any, workers: int, deadline: float = DEADLINE, **options: Any) -> Elasticity:
        """From "MIN:MAX", or from MIN alone for a run that never has more workers than it began with."""
        least, colon, most = str(text).partition(":")
        try:
            limits = int(least), int(most) if colon else workers
        except ValueError:
            raise UserError(f"elastic = {text!r}: write MIN:MAX, such as 2:8") from None
        parsed = cls(*limits, deadline, **options)
        if not parsed.least <= workers <= parsed.most:
            raise UserError(f"elastic = {text!r}: the run begins with {workers} workers, which is not in that range")
        return parsed


class Lost(NamedTuple):
    """A worker that was left out, and what is known of its end."""

    worker: int
    why: str  # "was killed by SIGKILL", "hangs outside of communication"
    step: int = 0  # its last known one
    rank: int | None = None  # in the generation that it was lost from
    host: str = ""

    def __str__(self) -> str:
        known = [f"rank {self.rank}"] if self.rank not in (None, self.worker) else []
        known += [f"host {self.host}"] if self.host else []
        where = f" ({', '.join(known)})" if known else ""
        return f"worker {self.worker}{where} {self.why} at step {self.step}"


class Roster(NamedTuple):
    """The workers of one generation. A worker's id is its own for the whole run; its rank is its place here."""

    generation: int
    members: tuple[int, ...]  # ids, by rank
    joined: tuple[int, ...] = ()  # of these, who was not in the generation before
    lost: tuple[Lost, ...] = ()  # who was there, and is here no longer


class Membership(ABC):
    """One worker's view of who takes part."""

    def __init__(self, worker: int, elasticity: Elasticity):
        self.worker, self.elasticity = worker, elasticity
        self.roster = Roster(-1, ())
        self.comm: Comm  # of the present generation

    @property
    def waiting(self) -> bool:
        """Has this worker still to be let in? Its comm is then a world of its own, until it calls `enter`."""
        return self.worker not in self.roster.members

    @property
    def enough(self) -> bool:
        """May a roster of this size go on?"""
        return len(self.roster.members) >= self.elasticity.least

    @property
    def is_new(self) -> bool:
        """Was this worker let in by the present roster? The others then bring it up to date."""
        return self.worker in self.roster.joined

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Has the run begun? Then there is something that only its workers know."""

    @abstractmethod
    def agreed(self) -> None:
        """All members have met: the run has begun, and this generation works."""

    @abstractmethod
    def publish(self, recipe: str) -> None:
        """Tell those who will wait to be let in what the workers of this run agree on."""

    @abstractmethod
    def published(self) -> str:
        """What the workers of this run agree on; empty where they have not said so."""

    @abstractmethod
    def newcomers(self) -> int:
        """How many wait to be let in. The answer may differ between workers: let one of them ask for all."""

    @abstractmethod
    def reform(self, *, let_in: bool = True) -> Comm:
        """End this generation, agree with the others on the next roster, and return its comm.

        All members call it: after `PeerLost`, or together after agreeing that newcomers wait. A worker that was
        taken for lost comes back here as a newcomer. Nobody is let in unless all members say `let_in`.
        """

    @abstractmethod
    def enter(self) -> Comm:
        """Wait to be let in; the comm of the generation that does so. Raises `LeftOut` where none will."""
