"""Balance in a tree: what got the same signs is balanced again by itself, with a running sum of its own."""

from __future__ import annotations

import numpy as np
import torch

from ..signal.base import GradientView
from .balance import NOTHING, Decide, Decided, balance
from .balancer import Signer


def nested(levels: int) -> Signer:
    """Signs of 2^levels - 1 nodes. A term goes left where it was added and right where it was taken away; the last level
    decides its side inside a leaf. Row k of the running sum belongs to node k, whose children are 2k + 1 and 2k + 2.
    """

    def signer(
        total: torch.Tensor | None,
        view: GradientView | None,
        terms: np.ndarray,
        decide: Decide,
        centre: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, Decided]:
        if view is None or not len(terms):
            return total, NOTHING
        if total is None:
            total = view.zeros().new_zeros(2**levels - 1, view.dimension)
        first = balance(total[0], view, terms, decide, centre)
        nodes, signs = np.zeros(len(terms), dtype=np.int64), first.signs.copy()
        for _ in range(levels - 1):
            nodes = 2 * nodes + np.where(signs > 0, 1, 2)
            for node in np.unique(nodes):
                members = np.flatnonzero(nodes == node)
                items = np.flatnonzero(terms[members].any(0))
                some = terms[np.ix_(members, items)]
                signs[members] = balance(total[node], view.take(items.tolist()), some, decide, centre).signs
        return total, Decided(signs, first.squares, first.cross, nodes - (2 ** (levels - 1) - 1))

    return signer
