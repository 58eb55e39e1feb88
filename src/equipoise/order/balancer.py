"""What GraB, PairBalance and CD-GraB share: terms from a stream of examples, signs, and the next order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..core.context import Context
from ..signal import restored
from ..signal.base import GradientView
from .balance import Decided, repeated
from .mean_estimate import Centre
from .prefix_norm import PrefixNorm
from .reordering import Units
from .signs import SIGNS

# From S, what was seen, the weights of the terms and a sign rule (and perhaps a centre) to S and the signs.
Signer = Callable[..., tuple[torch.Tensor | None, Decided]]


class Balancer:
    """Turns what is seen of examples into the order of the next epoch.

    A *term* is what gets one sign: the difference of two units (`PAIR`) or one unit (`SINGLE`), units being examples
    or the means of groups. A term that a batch begins and the next one ends is carried over as the factors of its
    examples.
    """

    def __init__(
        self,
        context: Context,
        signature: tuple[float, ...],
        group: int,
        sign: str,
        signer: Signer,
        centre: Centre | None = None,
        ending: Callable[[torch.Tensor | None], Decided] | None = None,
    ):
        self.context, self.signature, self.rule, self.signer = context, signature, SIGNS[sign], signer
        self.units = Units(context.worker.examples, group, context.worker.rng(1, 0))
        self.number = 0  # of the epoch
        self.total: torch.Tensor | None = None  # S
        self.terms = len(self.units.members) // len(signature)  # in an epoch
        self.memory: dict[str, float] = {"terms": float(self.terms)}
        self.centre, self.ending = centre, ending
        self.measure = PrefixNorm(context, together=ending is not None)
        self._forget()

    def _forget(self) -> None:
        """Nothing is begun."""
        self.carried: GradientView | None = None
        self.weights: list[float] = []  # of the carried vectors in the open term
        self.open: list[int] = []  # units of the open term
        self.waiting = np.empty((0, len(self.signature)), dtype=np.int64)  # units of terms without a sign so far
        self.filled = 0  # examples of its last unit that have been seen; 0: all of them

    def epoch(self, number: int) -> np.ndarray:
        if number != self.number:
            if self.ending is not None:
                self._place(self.ending(self.total))
            self.units.turn()
            self.measure.turn()
            if self.centre is not None:
                self.centre.turn()
            self._forget()
            self.memory = {"epochs": float(number + 1), "terms": float(self.terms)}
            if self.total is not None:
                self.total.zero_()
            self.number = number
        return self.units.positions()

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        """Sign the terms that this batch completes and place their units."""
        mean: dict[str, torch.Tensor] = {}
        if view is not None and len(positions):
            assert sum(view.sizes) == len(positions)
            self.measure.saw(view)
            if self.centre is not None:
                mean["centre"] = self.centre.saw(view)
            if self.carried is not None:
                view = self.carried.join(view)
        else:
            view = self.carried
            positions = positions[:0]
        singly = self.units.group == 1 and (view is None or view.items == len(self.open) + len(positions))
        terms, units = (self._single_terms if singly else self._terms)(positions, view)
        self.total, decided = self.signer(self.total, view, terms, self.decide, **mean)
        self.waiting = np.concatenate((self.waiting, units)) if len(self.waiting) else units
        self._place(decided)
        self.measure.decided(decided, len(self.signature))

    def _place(self, decided: Decided) -> None:
        """Signs come in the order of their terms, and may come some steps later."""
        count = len(decided.signs)
        self.units.place(self.waiting[:count], np.outer(decided.signs, self.signature) > 0, decided.leaves)
        self.waiting = self.waiting[count:]

    def decide(self, product: float, square: float) -> int:
        def draw() -> float:
            self.memory["draws"] = self.memory.get("draws", 0.0) + 1
            seed = [self.context.worker.seed, 7, self.number, int(self.memory["draws"])]
            return float(np.random.default_rng(seed).random())

        return self.rule(product, square, self.memory, draw)

    def _single_terms(self, positions: np.ndarray, view: GradientView | None) -> tuple[np.ndarray, np.ndarray]:
        """As `_terms`, where every vector is a unit: no loop over examples, of which a step may have many."""
        width = len(self.signature)
        units = [*self.open, *self.units.of[positions].tolist()]
        count, left = divmod(len(units), width)
        self.open = units[count * width :]
        self.weights = list(self.signature[:left])
        self.carried = view.take(list(range(count * width, len(units)))) if view is not None and left else None
        return repeated(self.signature, count, len(units)), np.array(units[: count * width], dtype=np.int64).reshape(
            count, width
        )

    def _terms(self, positions: np.ndarray, view: GradientView | None) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the vectors in each completed term, and its units. What stays open is carried over."""
        done: list[dict[int, float]] = []
        units: list[list[int]] = []
        term = dict(enumerate(self.weights))
        first = len(term)
        items = [] if view is None else [i for i, n in enumerate(view.sizes[first:], first) for _ in range(n)]
        for item, unit in zip(items, self.units.of[positions].tolist(), strict=False):
            if self.filled and unit != self.open[-1]:
                term, self.open, self.filled = {}, [], 0  # its rest was skipped: it will never be complete
            if not self.filled:
                self.open.append(unit)
            size = len(self.units.members[unit])
            term[item] = term.get(item, 0.0) + self.signature[len(self.open) - 1] / size
            self.filled = (self.filled + 1) % size
            if not self.filled and len(self.open) == len(self.signature):
                done.append(term)
                units.append(self.open)
                term, self.open = {}, []
        self.weights = list(term.values())
        self.carried = view.take(list(term)) if view is not None and term else None
        rows = np.zeros((len(done), view.items if view is not None else 0))
        for row, term in zip(rows, done, strict=True):
            row[list(term)] = list(term.values())
        return rows, np.array(units, dtype=np.int64).reshape(len(done), len(self.signature))

    def state(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "total": None if self.total is None else self.total.clone(),
            "memory": dict(self.memory),
            "carried": None if self.carried is None else self.carried.state(),
            "weights": list(self.weights),
            "open": list(self.open),
            "waiting": self.waiting.tolist(),
            "filled": self.filled,
            "sequence": list(self.units.sequence),
            "front": list(self.units.front),
            "back": list(self.units.back),
            "leaves": dict(self.units.leaves),
            "measure": self.measure.state(),
            "centre": None if self.centre is None else self.centre.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.number, self.total, self.memory = state["number"], state["total"], dict(state["memory"])
        self.carried = None if state["carried"] is None else restored(state["carried"])
        self.weights, self.open, self.filled = list(state["weights"]), list(state["open"]), state["filled"]
        self.waiting = np.array(state["waiting"], dtype=np.int64).reshape(-1, len(self.signature))
        self.units.sequence = list(state["sequence"])
        self.units.front, self.units.back = list(state["front"]), list(state["back"])
        self.units.leaves = dict(state["leaves"])
        self.measure.load(state["measure"])
        if self.centre is not None:
            self.centre.load(state["centre"])
