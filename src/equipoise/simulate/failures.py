"""What befalls a worker of a described cluster: jitter of the step time, spells of being slow, and failures.

All draws are functions of the seed, the worker and the step (or the time), so a checkpoint need not contain any state.
"""

from __future__ import annotations

import math

import numpy as np

from ..core.errors import UserError
from .cluster import Cluster
from .spells import Spell, Spells

_BLOCK = 256  # numbers drawn at once


class FailureModel:
    """The jitter of one worker, and when it is slow or away.

    worker: its number for the whole run, where that is not its rank in this cluster.
    """

    def __init__(self, cluster: Cluster, rank: int, seed: int, worker: int | None = None):
        self.worker = rank if worker is None else worker
        self._seed = [seed, self.worker]
        about = cluster.disturbances(rank)
        self.jitter = about["jitter"]
        self._factors, self._block = np.empty(0), -1  # the factors of one block of steps, and its number
        outages = Spells(per_hour=about["failures_per_hour"], seconds=about["repair"], seed=(*self._seed, 2))
        slowdowns = Spells(
            per_hour=about["slowdowns_per_hour"],
            seconds=about["slowdown"],
            factor=about["slowdown_factor"],
            seed=(*self._seed, 3),
        )
        planned = {kind: Spells(Spell(*row) for row in about[kind]) for kind in ("away", "slow")}
        self.away = [spells for spells in (planned["away"], outages) if spells]
        self.slow = [spells for spells in (planned["slow"], slowdowns) if spells]

    def factor(self, step: int) -> float:
        """The factor on the time of this step: log-normal with mean 1 and standard deviation `jitter`."""
        if not self.jitter:
            return 1.0
        block, index = divmod(step, _BLOCK)
        if block != self._block:
            variance = math.log1p(self.jitter**2)
            normal = np.random.default_rng([*self._seed, 1, block]).standard_normal(_BLOCK)
            self._factors, self._block = np.exp(math.sqrt(variance) * normal - variance / 2), block
        return float(self._factors[index])

    def outages(self, after: float, until: float) -> list[Spell]:
        """Those that begin in (after, until], simulated seconds."""
        return sorted(spell for spells in self.away for spell in spells.starting(after, until))

    def outage_at(self, time: float) -> Spell | None:
        """The one that is on at this second, and ends last."""
        on = [spell for spells in self.away if (spell := spells.at(time)) is not None]
        return max(on, key=lambda spell: spell.end, default=None)

    def finish(self, start: float, work: float, *, returns: bool = True) -> tuple[float, float, float]:
        """When is a gradient ready that takes `work` seconds undisturbed and is begun at `start`?

        Returns that second, for how long the worker computed, and for how long it was away. Not `returns`: it is never
        away, because it is lost when it leaves.
        """
        now, computed, away = start, 0.0, 0.0
        outages = self.away if returns else []
        while outages or self.slow:
            outage = self.outage_at(now) if returns else None
            if outage is not None:
                if math.isinf(outage.end):
                    raise UserError(
                        f"worker {self.worker} of the cluster leaves for good after {outage.start:g} simulated "
                        "seconds, and the others would wait for ever: let the run go on without it (--elastic "
                        "MIN:MAX), or say until when it is away"
                    )
                away += outage.end - now
                now = outage.end
                continue
            factor = math.prod(spell.factor for spells in self.slow if (spell := spells.at(now)) is not None)
            change = min(spells.next_change(now) for spells in (*outages, *self.slow))
            if now + work * factor <= change:
                return now + work * factor, computed + work * factor, away
            computed += change - now
            work = max(0.0, work - (change - now) / factor)
            now = change
        return now + work, work, away
