"""Recursive balancing: terms with the same signs are balanced again among themselves, each with its own running sum."""

from __future__ import annotations

import numpy as np
import torch

from ..signal.base import GradientView
from .epoch_builder import Signer
from .sign_terms import NO_TERMS, ChooseSign, Floats, TermSigns, sign_terms


def recursive_signer(levels: int) -> Signer:
    """Signs from a binary tree of 2^levels - 1 nodes.

    A term with sign + goes to the left child, one with sign - to the right child; the last level gives its sign inside
    a leaf. Row k of the running sum belongs to node k, whose children are 2k + 1 and 2k + 2.
    """

    def signer(
        total: torch.Tensor | None,
        view: GradientView | None,
        terms: Floats,
        choose_sign: ChooseSign,
        centre: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, TermSigns]:
        if view is None or not len(terms):
            return total, NO_TERMS
        if total is None:
            total = view.zeros().new_zeros(2**levels - 1, view.dimension)
        root = sign_terms(total[0], view, terms, choose_sign, centre)
        nodes, signs = np.zeros(len(terms), dtype=np.int64), root.signs.copy()
        for _ in range(levels - 1):
            nodes = 2 * nodes + np.where(signs > 0, 1, 2)
            for node in np.unique(nodes):
                members = np.flatnonzero(nodes == node)
                items = np.flatnonzero(terms[members].any(0))
                subset = terms[np.ix_(members, items)]
                signs[members] = sign_terms(total[node], view.take(items.tolist()), subset, choose_sign, centre).signs
        return total, TermSigns(signs, root.squares, root.cross, nodes - (2 ** (levels - 1) - 1))

    return signer
