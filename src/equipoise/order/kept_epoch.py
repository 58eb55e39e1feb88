"""Builds the next epoch's order when an epoch has ended, from sketches of its gradients that were kept."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core.context import Context
from ..core.errors import UserError
from ..signal import view_from_state
from ..signal.base import GradientView
from ..signal.rows import Rows
from .builder import Builder
from .kept_messages import balance_on_rank_0
from .prefix_norm import warn_of_dimension
from .sign_rules import SIGN_RULES, greedy
from .sign_terms import ChooseSign
from .sweeps import Balanced, Kept, balance_kept, no_orders

_MOST = 1 << 27  # numbers kept by all workers together: half a gigabyte
_PENDING = 1 << 16  # numbers that steps keep until they are stored: where steps are larger, one at a time
_LONGEST = 8  # epochs for which an order is learned where `every` is left open,
_KEPT = 0.8  # and the part of its gain that is enough to learn less often
_TRAFFIC = 0.1  # bytes of sketches that rank 0 receives in these epochs, of those that it sends for the sync


class KeptStep(NamedTuple):
    number: int
    positions: np.ndarray
    view: Rows


class KeptEpoch(Builder):
    """Keeps one short vector per unit in an epoch that is learned from, and balances them `sweeps` times at its end.

    A step only computes sketches: no sign, no message. Where workers coordinate (`together`), each sends its sketches
    to rank 0 once in such an epoch and receives the orders of the next `every` epochs. No two of them have the same
    batches: visiting one order again and again is worse than a random one (docs/order.md).
    """

    def __init__(
        self,
        context: Context,
        signature: tuple[float, ...],
        group: int,
        every: int,
        sign: str,
        sweeps: int,
        together: bool,
    ):
        super().__init__(context, group, every or 1)
        self.adapts = not every
        self.signature, self.rule, self.sweeps = signature, SIGN_RULES[sign], sweeps
        self.together = together and context.size > 1
        self.relative, self.dimension, self.warned = math.nan, math.nan, False
        self.sent = context.comm.ledger.bytes  # when the last learned epoch had ended
        self.rows: torch.Tensor | None = None  # one per unit
        self.upcoming: list[list[int]] = []  # units in the orders of the epochs until the next one is learned from
        self.begin()

    def begin(self) -> None:
        count = len(self.units.members)
        self.step = 0
        self.pending: list[KeptStep] = []  # what has not been stored yet,
        self.numbers = 0  # and the numbers that it keeps
        self.arrived = np.zeros(count, dtype=np.int64)  # examples of each unit that have been visited
        self.steps = np.zeros(count, dtype=np.int64)  # the step in which its last one was
        if self.rows is not None and self.units.group > 1:
            self.rows.zero_()

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        """Only remember the step: what many of them have in common is done for all of them at once."""
        self.step += 1
        if view is None or not len(positions):
            return
        if not isinstance(view, Rows):
            view = Rows(self._materialized(view), view.sizes)
        self.pending.append(KeptStep(self.step, positions, view))
        self.numbers += view.numbers
        if self.numbers >= _PENDING or self.rows is None:  # at first: are they too long to be kept?
            self._store()

    def _store(self) -> None:
        """Compute and store the vectors of the pending steps.

        The bits of a product depend on its size. So what is pending is a part of the state, and a checkpoint changes
        nothing.
        """
        pending, self.pending, self.numbers = self.pending, [], 0
        for _, alike in groupby(pending, lambda step: step.view.kind):
            steps = list(alike)
            rows = type(steps[0].view).stacked([step.view for step in steps])
            if self.rows is None:
                self.rows = self._allocated(rows)
            units = self.units.of[np.concatenate([step.positions for step in steps])]
            if self.units.group == 1 and len(rows) == len(units):
                self.rows[torch.from_numpy(units).to(rows.device)] = rows
            else:
                self._add_groups(units, rows, [size for step in steps for size in step.view.sizes])
            np.add.at(self.arrived, units, 1)
            self.steps[units] = np.repeat([step.number for step in steps], [len(step.positions) for step in steps])

    def _add_groups(self, units: np.ndarray, rows: torch.Tensor, sizes: list[int]) -> None:
        """A row is the mean over consecutive examples; a unit's vector is the mean over its members."""
        assert self.rows is not None
        of_row = np.repeat(np.arange(len(sizes)), sizes)
        weights = torch.as_tensor(1 / np.array([len(self.units.members[unit]) for unit in units]), dtype=rows.dtype)
        terms = rows[torch.from_numpy(of_row)] * weights.to(rows.device)[:, None]
        self.rows.index_add_(0, torch.from_numpy(units).to(rows.device), terms)

    def _allocated(self, rows: torch.Tensor) -> torch.Tensor:
        numbers = len(self.units.members) * rows.shape[1] * (self.context.size if self.together else 1)
        if numbers > _MOST:
            raise UserError(
                f"sweeps would keep {numbers:,} numbers, {rows.shape[1]:,} for each unit: use --order.sweeps 1, or a "
                "shorter signal (--order.signal projection)"
            )
        return rows.new_zeros(len(self.units.members), rows.shape[1])

    @staticmethod
    @torch.no_grad()
    def _materialized(view: GradientView) -> torch.Tensor:
        return view.vectors(torch.eye(view.items, dtype=view.zeros().dtype, device=view.zeros().device))

    def finish(self) -> None:
        self._store()
        full = [unit for unit in self.units.sequence if self.arrived[unit] == self.units.group]  # none that is short
        kept = Kept(torch.zeros(0, 0), np.zeros(0, dtype=np.int64))
        if self.rows is not None:
            kept = Kept(self.rows.detach().cpu()[torch.tensor(full, dtype=torch.int64)], self.steps[full])
        balanced = balance_on_rank_0(self.context.comm, kept, self._balance) if self.together else self._balance([kept])
        self.relative, self.dimension = balanced.herding, balanced.dimension
        self.every, self.sent = len(balanced.orders[0]), self.context.comm.ledger.bytes
        self.upcoming = np.array(full, dtype=np.int64)[balanced.orders[0]].tolist()
        self._place_next()

    def _epochs(self, visited: float, received: int, sent: int) -> int:
        """Until the next learned epoch. Twice as many as until this one if the order that was visited in it is still as
        balanced as when it was learned, half as many if half of that is lost; more where the sketches that arrived are
        not few compared with what rank 0 has sent since the last ones.
        """
        if not self.adapts:
            return self.every
        gain, kept = 1 - self.relative, 1 - visited  # of the largest prefix of a random order
        epochs = self.every
        if kept >= _KEPT * gain:
            epochs = 2 * self.every
        elif kept < gain / 2:
            epochs = max(1, self.every // 2)
        least = math.ceil(received * self.every / (_TRAFFIC * sent)) if sent else 1
        return min(max(epochs, least), _LONGEST)

    def _place_next(self) -> None:
        order = self.upcoming.pop(0)
        half = len(order) // 2
        self.units.front, self.units.back = order[:half], order[half:][::-1]

    def next_between(self) -> None:
        self._place_next()
        self.units.next_epoch()

    def _balance(self, workers: list[Kept]) -> Balanced:
        used = [kept for kept in workers if len(kept.steps)]
        if not used:
            return Balanced([no_orders(self.every)] * len(workers), math.nan, math.nan, math.nan)
        received = sum(kept.rows.nbytes for kept in workers[1:])
        sent = self.context.comm.ledger.bytes - self.sent
        epochs = partial(self._epochs, received=received, sent=sent)
        balanced = balance_kept(used, self.signature, self.sweeps, self._rule, epochs)
        vectors = sum(len(kept.rows) for kept in used)
        self.warned = warn_of_dimension(self.context, self.warned, balanced.dimension, vectors)
        orders, none = iter(balanced.orders), no_orders(len(balanced.orders[0]))
        return balanced._replace(orders=[next(orders) if len(kept.steps) else none for kept in workers])

    def _rule(self, sweep: int) -> ChooseSign:
        if self.rule is greedy:  # it has no memory
            return lambda product, square: 1 if product <= 0 else -1
        terms = float(len(self.units.members) // len(self.signature))
        memory: dict[str, float] = {"epochs": float(self.number + 1 + sweep), "terms": terms}

        def draw() -> float:
            memory["draws"] = memory.get("draws", 0.0) + 1
            seed = [self.context.worker.seed, 7, self.number, sweep, int(memory["draws"])]
            return float(np.random.default_rng(seed).random())

        return lambda product, square: self.rule(product, square, memory, draw)

    def herding(self) -> float:
        return self.relative

    def own_state(self) -> dict[str, Any]:
        return {
            "rows": None if self.rows is None else self.rows.clone(),
            "pending": [[step.number, step.positions.tolist(), step.view.state()] for step in self.pending],
            "arrived": self.arrived.tolist(),
            "steps": self.steps.tolist(),
            "step": self.step,
            "every": self.every,
            "sent": self.sent,
            "upcoming": [list(order) for order in self.upcoming],
            "relative": self.relative,
            "dimension": self.dimension,
            "warned": self.warned,
        }

    def load_own(self, state: dict[str, Any]) -> None:
        if "upcoming" not in state:
            raise UserError(
                "this checkpoint has an order that is balanced while gradients arrive, as by default before 0.3: "
                "continue it with --order.sweeps 1"
            )
        self.rows, self.step, self.every, self.sent = state["rows"], state["step"], state["every"], state["sent"]
        self.pending = []
        for number, positions, view in state["pending"]:
            rows = view_from_state(view)
            assert isinstance(rows, Rows)
            self.pending.append(KeptStep(number, np.array(positions), rows))
        self.numbers = sum(step.view.numbers for step in self.pending)
        self.upcoming = [list(order) for order in state["upcoming"]]
        self.arrived, self.steps = np.array(state["arrived"], np.int64), np.array(state["steps"], np.int64)
        self.relative, self.dimension, self.warned = state["relative"], state["dimension"], state["warned"]
