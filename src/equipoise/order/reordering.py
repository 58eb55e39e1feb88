"""From signs to the next order: what is added goes to the front, what is taken away to the back, in reverse."""

from __future__ import annotations

import numpy as np


def reorder(front: list[int], back: list[int], rest: list[int]) -> list[int]:
    """The next order. What no sign was found for (a skipped batch, an odd one out) goes to the middle, where it
    hurts least.
    """
    return [*front, *rest, *reversed(back)]


def folded(leaves: list[list[int]]) -> list[int]:
    """The leaves of a tree in one order: at every node what was added, then what was taken away, in reverse."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return folded(leaves[:half]) + folded(leaves[half:])[::-1]


class Units:
    """The things that are ordered: examples, or groups of `group` examples that stay together for the whole run.

    A last group that is smaller stays at the end, so that groups and batches stay aligned.
    """

    def __init__(self, examples: int, group: int, generator: np.random.Generator):
        self.examples, self.group = examples, group
        dealt = generator.permutation(examples)
        self.members = [dealt[start : start + group] for start in range(0, examples, group)]
        self.of = np.empty(examples, dtype=np.int64)
        self.of[dealt] = np.arange(examples) // group
        self.sequence = list(range(len(self.members)))
        self.front: list[int] = []
        self.back: list[int] = []
        self.leaves: dict[int, int] = {}  # of the units that are not in leaf 0

    def positions(self) -> np.ndarray:
        if not self.members:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([self.members[unit] for unit in self.sequence])

    def place(self, units: np.ndarray, added: np.ndarray, leaves: np.ndarray | None) -> None:
        """Units by terms: those that were `added` to the front, others to the back; each term in its leaf of the tree."""
        self.front += units[added].tolist()
        self.back += units[~added].tolist()
        if leaves is not None:
            for members, leaf in zip(units.tolist(), leaves.tolist(), strict=True):
                self.leaves.update((unit, leaf) for unit in members if leaf)

    def turn(self) -> None:
        """Begin the next epoch."""
        placed = {*self.front, *self.back}
        rest = [unit for unit in self.sequence if unit not in placed]
        short = [] if self.examples % self.group == 0 else [len(self.members) - 1]
        order = self._through_leaves(rest) if self.leaves else reorder(self.front, self.back, rest)
        self.sequence = [unit for unit in order if unit not in short] + short
        self.front, self.back, self.leaves = [], [], {}

    def _through_leaves(self, rest: list[int]) -> list[int]:
        count = 1 << max(self.leaves.values()).bit_length()
        fronts: list[list[int]] = [[] for _ in range(count)]
        backs: list[list[int]] = [[] for _ in range(count)]
        for side, units in ((fronts, self.front), (backs, self.back)):
            for unit in units:
                side[self.leaves.get(unit, 0)].append(unit)
        leaves = [reorder(front, back, []) for front, back in zip(fronts, backs, strict=True)]
        return folded(leaves[: count // 2]) + rest + folded(leaves[count // 2 :])[::-1]
