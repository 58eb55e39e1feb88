"""Who talks to whom? A pure function of the round number: no process groups, no state."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from ..core.errors import UserError
from ..core.method import Configurable, option
from . import analysis

Self = TypeVar("Self", bound="Topology")


@dataclass(kw_only=True)
class Topology(Configurable):
    """A graph over workers with mixing weights, perhaps another one each round.

    Everything else is final and follows from the two methods that a topology fills: `edges` and
    `period_length` (a graph that stays the same is `Static` and fills `edges` alone). W_ij is the weight with
    which worker i mixes in the model of worker j; a worker keeps the part of its own model that it does not
    give away, so columns sum to 1.
    """

    axis: ClassVar[str] = "topology"

    lazy: bool = option(False, help="mix with (I + W) / 2: no negative eigenvalues, at half the speed")
    slack: float = option(1.0, help="mix with slack W + (1 - slack) I: a worse graph, for experiments", above=0, most=1)

    size = 0  # set by `on`
    directed = False  # True where worker j may mix in i without i mixing in j with the same weight
    content = ""  # what a topology has read from a file, as a digest: part of what it is
    identity = ""  # set by `on`: bound topologies with the same identity give the same answers

    @abstractmethod
    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        """The peers whose models worker `rank` mixes in at `round`, with their weights; without itself."""

    @abstractmethod
    def period_length(self, size: int) -> int:
        """The number of rounds after which the sequence of graphs repeats; 0 if it never does."""

    def on(self: Self, size: int) -> Self:
        """This topology over `size` workers."""
        if size < 1:
            raise UserError(f"a topology over {size} workers: at least 1 is needed")
        bound = copy.copy(self)
        bound.size = size
        bound.identity = f"{type(self).__module__}:{self!r}:{self.content}:{size}"
        bound.neighbours(0, 0)  # a size that does not fit is refused here, before any worker starts
        return bound

    # -- what the exchange of models needs ----------------------------------------------------------------
    def neighbours(self, round: int, rank: int) -> list[tuple[int, float]]:
        """`[(peer, weight), ...]`: whom worker `rank` mixes in. Its row of W, without itself (`keeps`)."""
        assert self.size, "call .on(workers) first"
        if self.size == 1:
            return []
        scale = self.slack * (0.5 if self.lazy else 1.0)
        return [(peer, weight * scale) for peer, weight in self.edges(round, rank, self.size)]

    def targets(self, round: int, rank: int) -> list[tuple[int, float]]:
        """`[(peer, weight), ...]`: who mix worker `rank` in, so whom it sends to. Its column of W."""
        if not self.directed:
            return self.neighbours(round, rank)
        return list(analysis.outgoing(self._key, self._within(round))[rank])

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

    # -- what follows from W ------------------------------------------------------------------------------
    @property
    def cycle(self) -> int:
        """Rounds after which the bound sequence repeats: 1 if the graph stays, 0 if it never repeats."""
        return self.period_length(self.size) if self.size > 1 else 1

    @property
    def symmetric(self) -> bool:
        """Is W its own transpose in every round?"""
        return not self.directed or analysis.symmetric(self._key)

    def rate(self, round: int = 0) -> float:
        """lambda = ||W - 11^T/n||_2: the part of the disagreement that one round of mixing leaves.

        For a symmetric W this is max(|lambda_2|, |lambda_min|).
        """
        return analysis.rate(self._key, self._within(round))

    def spectral_gap(self, round: int = 0) -> float:
        """1 - lambda; 0 for one round of a sequence that mixes only over its period: see `contraction`."""
        return 1.0 - self.rate(round)

    def lambda_2(self, round: int = 0) -> float:
        """The second largest eigenvalue of a symmetric W; 0 for one worker, who agrees with itself."""
        return analysis.eigenvalues(self._key, self._within(round))[1] if self.size > 1 else 0.0

    def lambda_min(self, round: int = 0) -> float:
        """The smallest eigenvalue of a symmetric W. D2 needs it above -1/3."""
        return analysis.eigenvalues(self._key, self._within(round))[-1] if self.size > 1 else 0.0

    def contraction(self, rounds: int | None = None) -> float:
        """||W_{R-1} ... W_0 - 11^T/n||_2 after R rounds (one period): 0 where a period is the exact mean."""
        return analysis.contraction(self._key, (self.cycle or analysis.WINDOW) if rounds is None else rounds)

    def rounds_to_contract(self, factor: float = 0.1) -> int | None:
        """Rounds of plain gossip that shrink any disagreement to `factor`; None if that never happens."""
        return analysis.rounds_to_contract(self._key, factor)

    def diameter(self) -> int | None:
        """Rounds until every worker has heard of every other, from round 0; None if that never happens.

        For a graph that stays, this is its diameter.
        """
        return analysis.spread(self._key)

    def degree(self, round: int = 0) -> int:
        """The most models that one worker sends in a round."""
        return max(len(self.targets(round, rank)) for rank in range(self.size))

    def fingerprint(self) -> str:
        """Equal on two workers if and only if they mean the same graphs and weights."""
        return analysis.fingerprint(self._key)

    def validate(self, round: int | None = None, push_sum: bool = False) -> None:
        """Refuse weights that would move the mean, and graphs over which workers never agree.

        All rounds of a period are looked at unless one is named. `push_sum` accepts rows that do not sum to
        1, which only methods of the push-sum family correct.
        """
        rounds = [round] if round is not None else range(self.cycle or analysis.WINDOW)
        for each in rounds:
            analysis.check_weights(self._key, each, push_sum)
        if self.diameter() is None:
            raise UserError(
                f"{self!r} over {self.size} workers: not connected, some workers never hear of others: "
                "add edges between the parts, or use ring"
            )

    @property
    def _key(self) -> analysis.Key:
        assert self.size, "call .on(workers) first"
        return analysis.Key(self.identity, self)

    def _within(self, round: int) -> int:
        """The first round with the same graph: what is cached once serves all periods."""
        return round % self.cycle if self.cycle else round


@dataclass
class Static(Topology):
    """A topology whose graph stays the same in every round. It fills `edges`, and ignores the round there."""

    def period_length(self, size: int) -> int:
        return 1
