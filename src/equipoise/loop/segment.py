"""How much of its block has each worker taken after so many steps?"""

from __future__ import annotations

import numpy as np


def steps_of(left: np.ndarray, sizes: np.ndarray, drop_last: bool) -> int:
    """Until the last worker has nothing left. With `drop_last`, until the last has no full batch; or the first, where
    everyone was given a size of its own.
    """
    if not drop_last:
        return int((-(-left // sizes)).max())
    full = left // sizes
    return int(full.max() if _one_size(sizes) else full.min())


def uneven(lengths: np.ndarray, sizes: np.ndarray) -> bool:
    """Is one size for all given to blocks of unequal size? Some workers would take theirs before the others, or end in
    a single example.

    Blocks that differ by one example are equal: the number of workers did not divide that of the examples.
    """
    return _one_size(sizes) and int(lengths.max() - lengths.min()) > 1


def _one_size(sizes: np.ndarray) -> bool:
    return bool((sizes == sizes[0]).all())


class ConstantBatchSegment:
    """Steps with the same batch sizes b_i, from L_i examples left to the end: S = max_i ceil(L_i / b_i) of them.
    After s

        worker i has taken  min(s b_i, max(L_i - (S - s), min(L_i, s)))        full batches first
                            s floor(L_i / S) + min(s, L_i mod S)               spread, where blocks are uneven

    `drop_last`: s b_i, and S = max_i floor(L_i / b_i); spread where L_i is less than S b_i. A segment that begins anew
    after s of the S steps gives the same.
    """

    def __init__(self, left: np.ndarray, sizes: np.ndarray, whose: int, drop_last: bool, spread: bool):
        self.left, self.sizes, self.whose = left, sizes, whose
        self.steps = steps_of(left, sizes, drop_last)
        self.rule = _full if drop_last else _spread if spread else _in_turn
        self.done = 0
        # Workers with as much left and the same size go alike: few kinds of them, however many there are.
        self.kinds, self.many = np.unique(np.stack((left, sizes)), axis=1, return_counts=True)
        self._known: tuple[int, int] = (0, 0)  # steps, and what all have taken after them

    def taken(self) -> np.ndarray:
        """By each worker so far."""
        return self.rule(self.left, self.sizes, self.steps, self.done)

    def mine(self, done: int) -> int:
        """Taken by this worker after so many steps."""
        whose = slice(self.whose, self.whose + 1)
        return int(self.rule(self.left[whose], self.sizes[whose], self.steps, done)[0])

    def total(self, done: int) -> int:
        """Taken by all after so many steps."""
        if self._known[0] != done:
            self._known = done, int(self.rule(self.kinds[0], self.kinds[1], self.steps, done) @ self.many)
        return self._known[1]


def _full(left: np.ndarray, sizes: np.ndarray, steps: int, done: int) -> np.ndarray:
    spread: np.ndarray = np.where(left // sizes < steps, _spread(left, sizes, steps, done), sizes * done)
    return spread


def _in_turn(left: np.ndarray, sizes: np.ndarray, steps: int, done: int) -> np.ndarray:
    taken: np.ndarray = np.minimum(sizes * done, np.maximum(left - (steps - done), np.minimum(left, done)))
    return taken


def _spread(left: np.ndarray, sizes: np.ndarray, steps: int, done: int) -> np.ndarray:
    taken: np.ndarray = left // max(steps, 1) * done + np.minimum(left % max(steps, 1), done)
    return taken
