"""Accelerated gossip: R rounds reduce the consensus distance about as much as R^2 rounds of plain gossip.

    z_{-1} = z_0 = Z;   z_{r+1} = (1 + eta_r) W z_r - eta_r z_{r-1},   r = 0 .. R-1

Linear in Z, preserves the mean exactly since (1 + eta) - eta = 1, and exchanges one vector per round. With
lambda = max(|lambda_2(W)|, |lambda_n(W)|) there are these choices of eta_r:

    accelerated   eta_r = (1 - sqrt(1 - lambda^2)) / (1 + sqrt(1 - lambda^2))
    chebyshev     eta_r = w_{r+1} - 1,  w_1 = 1, w_2 = 1 / (1 - lambda^2 / 2), w_{r+1} = 1 / (1 - w_r lambda^2 / 4)
    plain         eta_r = 0

and a fourth kind that changes W too, since the eigenvalues of W seldom lie around 0:

    fitted        chebyshev for W' = I + s (W - I),  s = 2 / (2 - lambda_2 - lambda_n),  whose eigenvalues other than 1
                  lie in [-delta, delta],  delta = (lambda_2 - lambda_n) / (2 - lambda_2 - lambda_n) <= lambda

W' has the links of W. Slack, W -> kappa W + (1 - kappa) I, changes s and nothing else.

On an eigenvector of W with eigenvalue mu, R rounds multiply by P_R(mu). The constant eta may amplify disagreement
when R is small: |P_1| is 1.30 on a ring of 32. `GossipPlan.make` refuses that. Chebyshev weights never do.
References: Liu and Morse, Accelerated Linear Iterations for Distributed Averaging, Annual Reviews in Control 2011; Lu
and De Sa, Optimal Complexity in Decentralized Training, ICML 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..core.errors import UserError
from ..topology.base import Topology
from .mixing import Mixing, require_static

KINDS = ("accelerated", "chebyshev", "plain")
FITTED = "fitted"
ENOUGH = 0.4  # of the disagreement may be left by the rounds of one step: with less, gradient tracking gains nothing
PATIENCE = 8.0  # steps that the rounds of one step may take, before they follow every second step instead


def eta(rate: float) -> float:
    """The constant weight of the previous vector, for lambda = `rate`."""
    root = math.sqrt(1.0 - rate * rate)
    return (1.0 - root) / (1.0 + root)


def rho(rate: float) -> float:
    """sqrt(eta) = lambda / (1 + sqrt(1 - lambda^2)): the asymptotic contraction of disagreement per round."""
    return rate / (1.0 + math.sqrt(1.0 - rate * rate))


def etas(kind: str, rate: float, rounds: int) -> list[float]:
    """eta_0 .. eta_{R-1}."""
    if kind == "plain":
        return [0.0] * rounds
    if kind == "accelerated":
        return [eta(rate)] * rounds
    weights = [1.0, 1.0 / (1.0 - rate * rate / 2.0)]
    while len(weights) < rounds:
        weights.append(1.0 / (1.0 - weights[-1] * rate * rate / 4.0))
    return [weight - 1.0 for weight in weights[:rounds]]


def polynomial(mu: npt.NDArray[np.float64], coefficients: list[float]) -> npt.NDArray[np.float64]:
    """P_R(mu): the factor by which the rounds multiply an eigenvector of W with eigenvalue mu."""
    before, now = np.ones_like(mu), np.ones_like(mu)
    for each in coefficients:
        before, now = now, (1.0 + each) * mu * now - each * before
    return now


def bound(rate: float, rounds: int, nonnegative: bool = False) -> float:
    """An upper bound on the contraction of disagreement by R accelerated rounds.

    For any symmetric W; a smaller bound holds if no eigenvalue of W is negative (lazy weights).
    """
    r = rho(rate)
    constant = (1.0 - r) * (rounds + 1) + math.sqrt(2.0) * r if nonnegative else 1.0 + (1.0 + r) * rounds
    return constant * r**rounds


def chebyshev_bound(rate: float, rounds: int) -> float:
    """The same for Chebyshev weights: 1 / T_R(1 / lambda), always below 1."""
    r = rho(rate)
    return 2.0 * r**rounds / (1.0 + r ** (2 * rounds))


def default_rounds(size: int, rate: float, heterogeneity: float = 1.0) -> int:
    """R = ceil(max(1/2 ln max(n, h) / sqrt(1 - lambda), 1)); 1 where one round already gives the mean.

    h = zeta_0^2 T / (Delta L), the paper's term for heterogeneity: zeta_0^2 = 1/n sum_i ||grad f_i - grad f||^2 at the
    start, T steps, Delta the distance of the loss from its minimum, L its smoothness. By default it counts for nothing.
    """
    if rate <= 1e-12:
        return 1
    return math.ceil(max(0.5 * math.log(max(size, heterogeneity)) / math.sqrt(1.0 - rate), 1.0))


def fitted_rounds(delta: float) -> int:
    """The least R for which R fitted rounds leave at most `ENOUGH` of the disagreement."""
    rounds = 1
    while chebyshev_bound(delta, rounds) > ENOUGH:
        rounds += 1
    return rounds


def paced(rounds: int, step: float, round: float) -> tuple[int, int]:
    """R and H for links on which a round takes `round` seconds and a step `step`, where the graph asks for `rounds`.

    Fewer rounds, or a longer period, save less time than they cost steps, however slow the links: docs/gossip.md.
    """
    return rounds, 1 if rounds * round <= PATIENCE * step else 2


@dataclass(frozen=True)
class GossipPlan:
    """R rounds and their weights on one graph."""

    etas: tuple[float, ...]
    contraction: float  # max |P_R(mu)| over the graph: the worst factor of R rounds on any disagreement
    stretch: float = 1.0  # s: rounds mix with I + s (W - I)

    @property
    def rounds(self) -> int:
        return len(self.etas)

    @classmethod
    def make(
        cls, topology: Topology, kind: str, rounds: int | None, who: str, heterogeneity: float = 1.0
    ) -> GossipPlan:
        """The plan for a bound topology, or a UserError if its rounds would amplify disagreement.

        Of a graph whose links may be down, it is the plan for the rounds in which none is: see `etas_of`.
        """
        topology = topology.without_drops()
        require_static(topology, who)
        if kind == FITTED:
            return cls._fitted(topology, rounds)
        eigenvalues = np.linalg.eigvalsh(topology.matrix())[:-1]
        rate = topology.rate()
        by_default = default_rounds(topology.size, rate, heterogeneity)
        if rounds is not None:
            plan = cls._of(eigenvalues, etas(kind, rate, rounds))
            if plan.contraction >= 1.0 or (rounds == 1 and max(plan.etas) > 1e-12):
                raise UserError(
                    f"{who}: {rounds} round{'s' * (rounds > 1)} of accelerated gossip on {topology!r} over "
                    f"{topology.size} workers may multiply disagreement by {plan.contraction:.2f}: omit rounds "
                    f"(then {by_default}), use lazy=True, or gossip='plain' (eta = 0)"
                )
            return plan
        rounds = by_default
        if rounds == 1:
            kind = "plain"  # one accelerated round is worse than one plain round
        plan = cls._of(eigenvalues, etas(kind, rate, rounds))
        while plan.contraction >= 1.0:
            rounds += 1
            plan = cls._of(eigenvalues, etas(kind, rate, rounds))
        return plan

    def etas_of(self, topology: Topology, first: int) -> tuple[float, ...]:
        """Of R rounds from number `first` on. Those of plain gossip, all zero, if a link is down in one of them.

        A polynomial of W may amplify disagreement where W changes on the way: with a tenth of the links down, the
        fitted rounds of a ring of 32 multiply it by 4.5 on average. Plain rounds never do.
        """
        return self.etas if topology.intact(first, self.rounds) else (0.0,) * self.rounds

    @classmethod
    def _fitted(cls, topology: Topology, rounds: int | None) -> GossipPlan:
        highest, lowest = topology.lambda_2(), topology.lambda_min()
        if topology.size == 1:
            return cls((0.0,) * (rounds or 1), 0.0)
        stretch = 2.0 / (2.0 - highest - lowest)
        delta = 0.5 * stretch * (highest - lowest)
        rounds = fitted_rounds(delta) if rounds is None else rounds
        return cls(tuple(etas("chebyshev", delta, rounds)), chebyshev_bound(delta, rounds), stretch)

    @classmethod
    def _of(cls, eigenvalues: npt.NDArray[np.float64], coefficients: list[float]) -> GossipPlan:
        values = np.abs(polynomial(eigenvalues, coefficients))
        return cls(tuple(coefficients), float(values.max()) if len(values) else 0.0)


def gossip(mixing: Mixing, plan: GossipPlan, z: torch.Tensor, scratch: torch.Tensor) -> None:
    """z <- AG_R(z), in place; `scratch` is a vector of the same size that is overwritten."""
    now, before = z, scratch.copy_(z)
    for each in plan.etas_of(mixing.topology, mixing.context.clock.rounds):
        mixing.begin(now)
        mixing.end(now, before, scale=1.0 + each, keep=-each)
        now, before = before, now
    if now is not z:
        z.copy_(now)
