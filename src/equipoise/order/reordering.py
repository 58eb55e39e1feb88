"""From signs to the next order: units with sign + go to the front, units with sign - to the back, reversed."""

from __future__ import annotations

from typing import Any

import numpy as np


def reorder(front: list[int], back: list[int], unsigned: list[int]) -> list[int]:
    """The next order. Units without a sign (skipped batches, an odd last one) go to the middle: they hurt least."""
    return [*front, *unsigned, *reversed(back)]


def merge_leaves(leaves: list[list[int]]) -> list[int]:
    """The leaves of a tree in one order: at every node the left subtree, then the right one reversed."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return merge_leaves(leaves[:half]) + merge_leaves(leaves[half:])[::-1]


class Units:
    """What is ordered: examples, or groups of `group` examples that stay together during the entire run.

    A last group that is smaller stays at the end, so that groups and batches stay aligned.
    """

    def __init__(self, examples: int, group: int, generator: np.random.Generator):
        self.examples, self.group = examples, group
        shuffled = generator.permutation(examples)
        self.members = [shuffled[start : start + group] for start in range(0, examples, group)]
        self.of = np.empty(examples, dtype=np.int64)
        self.of[shuffled] = np.arange(examples) // group
        self.sequence = list(range(len(self.members)))
        self.front: list[int] = []
        self.back: list[int] = []
        self.leaves: dict[int, int] = {}  # unit -> leaf, for the units that are not in leaf 0

    def positions(self) -> np.ndarray:
        if not self.members:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([self.members[unit] for unit in self.sequence])

    def place(self, units: np.ndarray, plus: np.ndarray, leaves: np.ndarray | None) -> None:
        """Put units to the front (`plus`) or to the back. A row of `units` is a term, and `leaves` says its leaf."""
        self.front += units[plus].tolist()
        self.back += units[~plus].tolist()
        if leaves is not None:
            for members, leaf in zip(units.tolist(), leaves.tolist(), strict=True):
                self.leaves.update((unit, leaf) for unit in members if leaf)

    def next_epoch(self) -> None:
        placed = {*self.front, *self.back}
        unsigned = [unit for unit in self.sequence if unit not in placed]
        short = [] if self.examples % self.group == 0 else [len(self.members) - 1]
        order = self._order_of_leaves(unsigned) if self.leaves else reorder(self.front, self.back, unsigned)
        self.sequence = [unit for unit in order if unit not in short] + short
        self.front, self.back, self.leaves = [], [], {}

    def reverse(self) -> None:
        """The same order backwards."""
        full = len(self.members) - (self.examples % self.group > 0)
        self.sequence[:full] = self.sequence[:full][::-1]

    def _order_of_leaves(self, unsigned: list[int]) -> list[int]:
        count = 1 << max(self.leaves.values()).bit_length()
        fronts: list[list[int]] = [[] for _ in range(count)]
        backs: list[list[int]] = [[] for _ in range(count)]
        for side, units in ((fronts, self.front), (backs, self.back)):
            for unit in units:
                side[self.leaves.get(unit, 0)].append(unit)
        leaves = [reorder(front, back, []) for front, back in zip(fronts, backs, strict=True)]
        return merge_leaves(leaves[: count // 2]) + unsigned + merge_leaves(leaves[count // 2 :])[::-1]

    def state(self) -> dict[str, Any]:
        return {
            "sequence": list(self.sequence),
            "front": list(self.front),
            "back": list(self.back),
            "leaves": dict(self.leaves),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.sequence, self.leaves = list(state["sequence"]), dict(state["leaves"])
        self.front, self.back = list(state["front"]), list(state["back"])
