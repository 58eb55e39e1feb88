"""Builds the next epoch's order while this epoch's gradients arrive: signs as published, one step after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..core.context import Context
from ..signal import view_from_state
from ..signal.base import GradientView
from .builder import Builder
from .mean_estimate import MeanEstimate
from .prefix_norm import PrefixNorm
from .sign_rules import SIGN_RULES
from .sign_terms import TermSigns, repeated

# (S, view, weights of the terms, sign rule[, centre]) -> S and the signs.
Signer = Callable[..., tuple[torch.Tensor | None, TermSigns]]


class EpochBuilder(Builder):
    """Groups a stream of examples into terms, has them signed, and places their units in the next epoch's order.

    A *unit* is what is ordered: one example, or a group of them. A *term* is what gets one sign: the difference of two
    units (`PAIR`) or one unit (`SINGLE`). A term that begins in one batch and ends in the next one is carried over as
    the view of its examples.
    """

    def __init__(
        self,
        context: Context,
        signature: tuple[float, ...],
        group: int,
        every: int,
        sign: str,
        signer: Signer,
        centre: MeanEstimate | None = None,
        end_epoch: Callable[[torch.Tensor | None], TermSigns] | None = None,
    ):
        """end_epoch: collects signs that are still outstanding when an epoch ends; given where workers coordinate."""
        super().__init__(context, group, every)
        self.signature, self.rule, self.signer = signature, SIGN_RULES[sign], signer
        self.total: torch.Tensor | None = None  # S
        self.terms = len(self.units.members) // len(signature)  # in an epoch
        self.memory: dict[str, float] = {"terms": float(self.terms)}
        self.centre, self.end_epoch = centre, end_epoch
        self.prefix_norm = PrefixNorm(context, over_workers=end_epoch is not None)
        self._reset()

    def _reset(self) -> None:
        """No term is open and no sign outstanding."""
        self.carried: GradientView | None = None
        self.weights: list[float] = []  # of the carried vectors in the open term
        self.open: list[int] = []  # units of the open term
        self.unsigned = np.empty((0, len(self.signature)), dtype=np.int64)  # units of complete terms without a sign yet
        self.filled = 0  # examples of the last open unit that have arrived; 0 once it is complete

    def finish(self) -> None:
        if self.end_epoch is not None:
            self._place(self.end_epoch(self.total))
        self.prefix_norm.next_epoch()
        if self.centre is not None:
            self.centre.next_epoch()
        self._reset()
        if self.total is not None:
            self.total.zero_()

    def next_between(self) -> None:
        """Backwards: the same prefix norms, and over two epochs the part of the error of first order cancels."""
        self.units.reverse()

    def begin(self) -> None:
        self.memory = {"epochs": float(self.number + 1), "terms": float(self.terms)}

    def herding(self) -> float:
        return self.prefix_norm.read() if self.learning else self.prefix_norm.herding

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        """Sign the terms that this batch completes and place their units."""
        centre: dict[str, torch.Tensor] = {}
        if view is not None and len(positions):
            assert sum(view.sizes) == len(positions)
            self.prefix_norm.add(view)
            if self.centre is not None:
                centre["centre"] = self.centre.update(view)
            if self.carried is not None:
                view = self.carried.join(view)
        else:
            view = self.carried
            positions = positions[:0]
        per_example = self.units.group == 1 and (view is None or view.items == len(self.open) + len(positions))
        terms, units = (self._terms_of_examples if per_example else self._terms)(positions, view)
        self.total, signed = self.signer(self.total, view, terms, self.choose_sign, **centre)
        self.unsigned = np.concatenate((self.unsigned, units)) if len(self.unsigned) else units
        self._place(signed)
        self.prefix_norm.record(signed, len(self.signature))

    def _place(self, signed: TermSigns) -> None:
        """Signs arrive in the order of their terms, possibly some steps later."""
        count = len(signed.signs)
        self.units.place(self.unsigned[:count], np.outer(signed.signs, self.signature) > 0, signed.leaves)
        self.unsigned = self.unsigned[count:]

    def choose_sign(self, product: float, square: float) -> int:
        return self.rule(product, square, self.memory, self._draw)

    def _draw(self) -> float:
        self.memory["draws"] = self.memory.get("draws", 0.0) + 1
        seed = [self.context.worker.seed, 7, self.number, int(self.memory["draws"])]
        return float(np.random.default_rng(seed).random())

    def _terms_of_examples(self, positions: np.ndarray, view: GradientView | None) -> tuple[np.ndarray, np.ndarray]:
        """As `_terms`, where every vector is a unit: no Python loop over the examples of a batch."""
        width = len(self.signature)
        units = [*self.open, *self.units.of[positions].tolist()]
        count, remaining = divmod(len(units), width)
        complete = count * width
        self.open = units[complete:]
        self.weights = list(self.signature[:remaining])
        self.carried = view.take(list(range(complete, len(units)))) if view is not None and remaining else None
        rows = np.array(units[:complete], dtype=np.int64).reshape(count, width)
        return repeated(self.signature, count, len(units)), rows

    def _terms(self, positions: np.ndarray, view: GradientView | None) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the vectors in each completed term, and its units. The open term is carried over."""
        complete: list[dict[int, float]] = []
        units: list[list[int]] = []
        term = dict(enumerate(self.weights))
        first = len(term)
        items = [] if view is None else [i for i, n in enumerate(view.sizes[first:], first) for _ in range(n)]
        for item, unit in zip(items, self.units.of[positions].tolist(), strict=False):
            if self.filled and unit != self.open[-1]:
                term, self.open, self.filled = {}, [], 0  # the rest of it was skipped: it can never be completed
            if not self.filled:
                self.open.append(unit)
            size = len(self.units.members[unit])
            term[item] = term.get(item, 0.0) + self.signature[len(self.open) - 1] / size
            self.filled = (self.filled + 1) % size
            if not self.filled and len(self.open) == len(self.signature):
                complete.append(term)
                units.append(self.open)
                term, self.open = {}, []
        self.weights = list(term.values())
        self.carried = view.take(list(term)) if view is not None and term else None
        rows = np.zeros((len(complete), view.items if view is not None else 0))
        for row, term in zip(rows, complete, strict=True):
            row[list(term)] = list(term.values())
        return rows, np.array(units, dtype=np.int64).reshape(len(complete), len(self.signature))

    def own_state(self) -> dict[str, Any]:
        return {
            "total": None if self.total is None else self.total.clone(),
            "memory": dict(self.memory),
            "carried": None if self.carried is None else self.carried.state(),
            "weights": list(self.weights),
            "open": list(self.open),
            "unsigned": self.unsigned.tolist(),
            "filled": self.filled,
            "prefix_norm": self.prefix_norm.state(),
            "centre": None if self.centre is None else self.centre.state(),
        }

    def load_own(self, state: dict[str, Any]) -> None:
        self.total, self.memory = state["total"], dict(state["memory"])
        self.carried = None if state["carried"] is None else view_from_state(state["carried"])
        self.weights, self.open, self.filled = list(state["weights"]), list(state["open"]), state["filled"]
        self.unsigned = np.array(state["unsigned"], dtype=np.int64).reshape(-1, len(self.signature))
        self.prefix_norm.load(state["prefix_norm"])
        if self.centre is not None:
            self.centre.load(state["centre"])
