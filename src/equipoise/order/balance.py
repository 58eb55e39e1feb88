"""Signs for the terms of one batch, in sequence and exactly, without making a single gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..signal.base import GradientView

Decide = Callable[[float, float], int]  # from <S, v> and ||v||^2 to +1 or -1


@dataclass
class Decided:
    """The signs of the terms `v`, their squared norms, and a mean of `<v_i, v_j>^2` over pairs of different terms."""

    signs: np.ndarray
    squares: np.ndarray
    cross: float
    leaves: np.ndarray | None = None  # of the tree, where terms were balanced again among those with the same signs


PAIR = (1.0, -1.0)  # the weights of the units in a term: a difference,
SINGLE = (1.0,)  # or one unit
NOTHING = Decided(np.zeros(0), np.zeros(0), float("nan"))


def alone(
    total: torch.Tensor | None,
    view: GradientView | None,
    terms: np.ndarray,
    decide: Decide,
    centre: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, Decided]:
    """Signs against this worker's own running sum, which is made when the first vectors are seen."""
    if view is None or not len(terms):
        return total, NOTHING
    if total is None:
        total = view.zeros()
    return total, balance(total, view, terms, decide, centre)


@lru_cache(maxsize=16)
def repeated(signature: tuple[float, ...], count: int, items: int) -> np.ndarray:
    """The weights of `items` vectors in `count` terms, as many in each as the signature has. Not to be changed."""
    return np.pad(np.kron(np.eye(count), signature), ((0, 0), (0, items - count * len(signature))))


def in_sequence(products: np.ndarray, gram: np.ndarray, decide: Decide) -> Decided:
    """`<S + s_1 v_1 + ... + s_(k-1) v_(k-1), v_k>` is a sum of numbers that are known: a loop over scalars."""
    squares, running = gram.diagonal().copy(), products.copy()
    signs = []
    for k, square in enumerate(squares.tolist()):
        signs.append(decide(running.item(k), square))
        if signs[-1] > 0:
            running += gram[k]
        else:
            running -= gram[k]
    return Decided(np.array(signs, dtype=np.float64), squares, _cross(gram, squares))


def _cross(gram: np.ndarray, squares: np.ndarray) -> float:
    count = len(gram)
    if count < 2:
        return float("nan")
    return float(np.vdot(gram, gram) - squares @ squares) / (count * (count - 1))


@torch.no_grad()
def balance(
    total: torch.Tensor, view: GradientView, terms: np.ndarray, decide: Decide, centre: torch.Tensor | None = None
) -> Decided:
    """Decide the sign of `v_k = sum_i terms_ki g_i - centre` for k = 0, 1, ... and add `s_k v_k` to `total`.

    <S_k, v_k> = <S, v_k> + sum_{j<k} s_j <v_j, v_k>
    """
    if view.stale:
        return _at_once(total, view, terms, decide, centre)
    products, gram = projected(total, view, terms, centre)
    if view.regions():
        return _streamed(total, view, terms, decide, centre, products, gram)
    decided = in_sequence(products, gram, decide)
    view.add_to(total, _tensor(decided.signs @ terms, total))
    if centre is not None:
        total.add_(centre, alpha=-float(decided.signs.sum()))
    return decided


def _at_once(
    total: torch.Tensor, view: GradientView, terms: np.ndarray, decide: Decide, centre: torch.Tensor | None
) -> Decided:
    """All signs against the S of the beginning. Nobody knows the length of a term: that of their signed sum, which is
    what S has grown by, tells the mean square.
    """
    products = terms @ view.products(total).double().cpu().numpy()
    if centre is not None:
        products -= float(total @ centre)
    before = float(total @ total)
    signs = np.array([float(decide(float(product), float("nan"))) for product in products])
    view.add_to(total, _tensor(signs @ terms, total))
    if centre is not None:
        total.add_(centre, alpha=-float(signs.sum()))
    square = max(0.0, float(total @ total) - before - 2 * float(signs @ products)) / len(terms)
    return Decided(signs, np.full(len(terms), square), float("nan"))


def projected(
    total: torch.Tensor, view: GradientView, terms: np.ndarray, centre: torch.Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`<S, v_k>` and `<v_j, v_k>`, less the regions of the view."""
    products = _in_terms(terms, _numbers(view.products(total)))
    gram = _in_terms(terms, _in_terms(terms, _numbers(view.gram())).T)
    if centre is not None:
        inside = _outside(centre, view.regions())
        with_centre = _in_terms(terms, _numbers(view.products(centre)))
        products -= float(_outside(total, view.regions()) @ inside)
        gram += float(inside @ inside) - with_centre[:, None] - with_centre[None]
    return products, gram


def _numbers(values: torch.Tensor) -> np.ndarray:
    return values.double().cpu().numpy()


def _in_terms(terms: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`terms @ rows`; differences of neighbours, the usual case, need no product."""
    if len(rows) == 2 * len(terms) and terms is repeated(PAIR, len(terms), len(rows)):
        return rows[0::2] - rows[1::2]
    return terms @ rows


def _streamed(
    total: torch.Tensor,
    view: GradientView,
    terms: np.ndarray,
    decide: Decide,
    centre: torch.Tensor | None,
    products: np.ndarray,
    gram: np.ndarray,
) -> Decided:
    """Inside the regions one term at a time is made, compared with the running sum and added to it."""
    regions, made = view.regions(), torch.empty_like(total)
    signs, squares = np.zeros(len(terms)), gram.diagonal().copy()
    for k, row in enumerate(terms):
        for region in regions:
            made[region] = 0.0 if centre is None else -centre[region]
        view.add_regions_to(made, _tensor(row, total))
        product = float(products[k] + gram[k, :k] @ signs[:k])
        for region in regions:
            product += float(total[region] @ made[region])
            squares[k] += float(made[region] @ made[region])
        signs[k] = decide(product, float(squares[k]))
        for region in regions:
            total[region].add_(made[region], alpha=signs[k])
    view.add_to(total, _tensor(signs @ terms, total))
    if centre is not None:
        outside = total.clone()
        total.add_(centre, alpha=-float(signs.sum()))
        for region in regions:
            total[region] = outside[region]
    return Decided(signs, squares, float("nan"))


def _outside(vector: torch.Tensor, regions: list[slice]) -> torch.Tensor:
    """The vector with the regions as zeros."""
    if not regions:
        return vector
    kept = vector.clone()
    for region in regions:
        kept[region] = 0
    return kept


def _tensor(values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
