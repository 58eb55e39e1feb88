"""Who talks to whom? A pure function of the round: no process groups, no state."""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from ..core.errors import UserError
from ..core.method import Configurable, option
from . import analysis
from .drops import down

Self = TypeVar("Self", bound="Topology")


class Binding(NamedTuple):
    """What `Topology.on` fixes."""

    size: int  # the world size
    identity: str  # bound topologies with the same identity give the same answers: the key of the caches


@dataclass(kw_only=True)
class Topology(Configurable):
    """A graph over workers with mixing weights, possibly a different graph in each round.

    A topology implements `edges` and `period_length` (a graph that does not change is `Static` and implements `edges`
    only); it may declare `directed` and `content`. Everything else is final and follows from these. W_ij is the weight
    with which worker i mixes in the model of worker j. A worker keeps the part of its own model that it does not give
    away, so columns sum to 1.
    """

    axis: ClassVar[str] = "topology"

    lazy: bool = option(False, help="mix with (I + W) / 2: no negative eigenvalues, at half the speed")
    slack: float = option(1.0, help="mix with slack W + (1 - slack) I: a worse graph, for experiments", above=0, most=1)
    drop: float = option(
        0.0, help="probability that a link is down in a round; both ends keep its weight", least=0, below=1
    )
    drop_seed: int = option(0, help="of the links that are down; the same on all workers", least=0)

    @abstractmethod
    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        """The peers whose models worker `rank` mixes in at `round`, with their weights; without `rank` itself."""

    @abstractmethod
    def period_length(self, size: int) -> int:
        """The number of rounds after which the sequence of graphs repeats; 0 if it never does."""

    @property
    def directed(self) -> bool:
        """May worker j mix in i without i mixing in j with the same weight? Declare `directed = True` if so."""
        return False

    @property
    def content(self) -> str:
        """A digest of what the topology has read from files: part of its identity that the options do not show."""
        return ""

    # -- the world size -----------------------------------------------------------------------------------
    def on(self: Self, size: int) -> Self:
        """This topology over `size` workers."""
        if size < 1:
            raise UserError(f"a topology over {size} workers: at least 1 is needed")
        bound = copy.copy(self)
        bound._bind(Binding(size, f"{type(self).__module__}:{self!r}:{self.content}:{size}"))
        bound.neighbours(0, 0)  # a size that does not fit is refused here, before any worker starts
        return bound

    def _bind(self, binding: Binding) -> None:
        self._binding = binding

    @property
    def is_bound(self) -> bool:
        """Was this topology made by `on`?"""
        return hasattr(self, "_binding")

    @property
    def size(self) -> int:
        """The world size; 0 before `on`."""
        return self._binding.size if self.is_bound else 0

    @property
    def identity(self) -> str:
        """Equal for bound topologies that give the same answers; empty before `on`."""
        return self._binding.identity if self.is_bound else ""

    # -- mixing weights -----------------------------------------------------------------------------------
    def neighbours(self, round: int, rank: int) -> list[tuple[int, float]]:
        """`[(peer, weight), ...]`: whom worker `rank` mixes in. Its row of W without the diagonal (`keeps`)."""
        assert self.is_bound, "call .on(workers) first"
        if self.size == 1:
            return []
        scale = self.slack * (0.5 if self.lazy else 1.0)
        edges = self.edges(round, rank, self.size)
        if self.drop:
            lost = down(self.drop, self.drop_seed, round, self.size)[rank]
            edges = [(peer, weight) for peer, weight in edges if not lost[peer]]
        return [(peer, weight * scale) for peer, weight in edges]

    def targets(self, round: int, rank: int) -> list[tuple[int, float]]:
        """`[(peer, weight), ...]`: who mixes worker `rank` in, so whom it sends to. Its column of W."""
        if not self.directed:
            return self.neighbours(round, rank)
        return list(analysis.outgoing(self._key, self._in_first_period(round))[rank])

    def keeps(self, round: int, rank: int) -> float:
        """W_ii: the weight of the worker's own model, which is what it does not give away."""
        return max(0.0, 1.0 - sum(weight for _, weight in self.targets(round, rank)))

    def matrix(self, round: int = 0) -> np.ndarray:
        """W: row i holds the weights with which worker i mixes the models of all."""
        weights = np.zeros((self.size, self.size))
        for rank in range(self.size):
            for peer, weight in self.neighbours(round, rank):
                weights[rank, peer] += weight
            weights[rank, rank] += self.keeps(round, rank)
        return weights

    # -- properties of W ----------------------------------------------------------------------------------
    @property
    def cycle(self) -> int:
        """Rounds after which the bound sequence repeats: 1 if the graph does not change, 0 if it never repeats."""
        if self.size == 1:
            return 1
        return 0 if self.drop else self.period_length(self.size)

    def without_drops(self: Self) -> Self:
        """This topology with all of its links up in every round."""
        whole = dataclasses.replace(self, drop=0.0) if self.drop else self
        return whole.on(self.size) if self.is_bound else whole

    def intact(self, first: int, rounds: int = 1) -> bool:
        """Are all links up in these rounds?"""
        return not self.drop or all(analysis.intact(self._key, round) for round in range(first, first + rounds))

    @property
    def symmetric(self) -> bool:
        """Is W its own transpose in every round?"""
        return not self.directed or analysis.symmetric(self._key)

    def rate(self, round: int = 0) -> float:
        """lambda = ||W - 11^T/n||_2: the fraction of the disagreement that remains after one round of mixing.

        For a symmetric W this is max(|lambda_2|, |lambda_min|).
        """
        return analysis.rate(self._key, self._in_first_period(round))

    def spectral_gap(self, round: int = 0) -> float:
        """1 - lambda; may be 0 in one round of a sequence that mixes over its period: see `contraction`."""
        return 1.0 - self.rate(round)

    def lambda_2(self, round: int = 0) -> float:
        """The second largest eigenvalue of a symmetric W; 0 for one worker."""
        return analysis.eigenvalues(self._key, self._in_first_period(round))[1] if self.size > 1 else 0.0

    def lambda_min(self, round: int = 0) -> float:
        """The smallest eigenvalue of a symmetric W. D2 needs it above -1/3."""
        return analysis.eigenvalues(self._key, self._in_first_period(round))[-1] if self.size > 1 else 0.0

    def contraction(self, rounds: int | None = None) -> float:
        """||W_{R-1} ... W_0 - 11^T/n||_2 after R rounds (one period): 0 where a period is the exact mean."""
        return analysis.contraction(self._key, (self.cycle or analysis.WINDOW) if rounds is None else rounds)

    def rounds_to_contract(self, factor: float = 0.1) -> int | None:
        """Rounds of plain gossip that reduce any disagreement to `factor`; None if that never happens."""
        return analysis.rounds_to_contract(self._key, factor)

    def diameter(self) -> int | None:
        """Rounds until information of every worker has reached every other, from round 0; None if it never does.

        For a graph that does not change, this is its diameter.
        """
        return analysis.spread(self._key)

    def degree(self, round: int = 0) -> int:
        """The most models that one worker sends in a round."""
        return max(len(self.targets(round, rank)) for rank in range(self.size))

    def fingerprint(self) -> str:
        """Equal on two workers if and only if their graphs and weights are equal."""
        return analysis.fingerprint(self._key)

    def validate(self, round: int | None = None, push_sum: bool = False) -> None:
        """Refuse weights that would move the mean, and graphs over which workers never reach consensus.

        All rounds of a period are checked unless `round` is given. `push_sum` accepts rows that do not sum to 1, which
        only push-sum methods correct.
        """
        if self.drop and not push_sum and not self.symmetric:
            raise UserError(
                f"{self!r} is directed, and a link that is down would move the mean: use an undirected graph, omit "
                "drop, or use --sync sgp, which corrects it"
            )
        rounds = [round] if round is not None else range(self.cycle or analysis.WINDOW)
        for each in rounds:
            analysis.check_weights(self._key, each, push_sum)
        if self.diameter() is None:
            raise UserError(
                f"{self!r} over {self.size} workers: not connected, some workers never reach others: "
                "add edges between the parts, or use ring"
            )

    @property
    def _key(self) -> analysis.Key:
        assert self.is_bound, "call .on(workers) first"
        return analysis.Key(self.identity, self)

    def _in_first_period(self, round: int) -> int:
        """The first round with the same graph, so that one cache entry serves all periods."""
        return round % self.cycle if self.cycle else round


@dataclass
class Static(Topology):
    """A topology with the same graph in every round. It implements `edges`, and ignores the round there."""

    def period_length(self, size: int) -> int:
        return 1
