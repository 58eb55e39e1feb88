"""How much of its block has each worker taken after so many steps?"""

from __future__ import annotations

import numpy as np


def steps_of(left: np.ndarray, sizes: np.ndarray, drop_last: bool) -> int:
    """Until the last worker has nothing left, or, with `drop_last`, until the first has no full batch."""
    return int((left // sizes).min() if drop_last else (-(-left // sizes)).max())


class ConstantBatchSegment:
    """Steps with the same batch sizes b_i, from L_i examples left to the end: S = max_i ceil(L_i / b_i) of them.
    After s

        worker i has taken  min(s b_i, max(L_i - (S - s), min(L_i, s)))        full batches first, then singly
                            s floor(L_i / S) + min(s, L_i mod S)               spread

    (`drop_last`: s b_i, and S = min_i floor(L_i / b_i)). A segment that begins anew after s of the S steps gives the
    same.
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
    return sizes * done


def _in_turn(left: np.ndarray, sizes: np.ndarray, steps: int, done: int) -> np.ndarray:
    taken: np.ndarray = np.minimum(sizes * done, np.maximum(left - (steps - done), np.minimum(left, done)))
    return taken


def _spread(left: np.ndarray, sizes: np.ndarray, steps: int, done: int) -> np.ndarray:
    taken: np.ndarray = left // max(steps, 1) * done + np.minimum(left % max(steps, 1), done)
    return taken
