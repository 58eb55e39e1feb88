"""Signs for the terms of one batch, one term after the other and exactly, without materializing a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from ..core.device import numbers, on_host
from ..signal.base import GradientView

Floats = npt.NDArray[np.float64]
ChooseSign = Callable[[float, float], int]  # from <S, v> and ||v||^2 to +1 or -1


@dataclass
class TermSigns:
    """The signs of the terms `v`, their squared norms, and the mean of `<v_i, v_j>^2` over pairs of different terms."""

    signs: Floats
    squares: Floats
    cross: float  # nan where it is not known
    leaves: npt.NDArray[np.int64] | None = None  # of the tree, where balancing is recursive


PAIR = (1.0, -1.0)  # a term is the difference of two units,
SINGLE = (1.0,)  # or a single unit
NO_TERMS = TermSigns(np.zeros(0), np.zeros(0), float("nan"))


def sign_locally(
    total: torch.Tensor | None,
    view: GradientView | None,
    terms: Floats,
    choose_sign: ChooseSign,
    centre: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, TermSigns]:
    """Signs against this worker's own running sum, which is allocated when the first vectors arrive."""
    if view is None or not len(terms):
        return total, NO_TERMS
    if total is None:
        total = view.zeros()
    return total, sign_terms(total, view, terms, choose_sign, centre)


@lru_cache(maxsize=16)
def repeated(signature: tuple[float, ...], count: int, items: int) -> Floats:
    """The weights of `items` vectors in `count` consecutive terms with this signature. Cached: do not modify."""
    return np.pad(np.kron(np.eye(count), signature), ((0, 0), (0, items - count * len(signature))))


def sign_sequentially(products: Floats, gram: Floats, choose_sign: ChooseSign) -> TermSigns:
    """Signs from `<S, v_k>` and `<v_j, v_k>`. `<S_k, v_k>` is a sum of known numbers: a loop over scalars."""
    squares, running = gram.diagonal().copy(), products.copy()
    signs, item = [], running.item
    for k, (square, row) in enumerate(zip(squares.tolist(), gram, strict=True)):
        sign = choose_sign(item(k), square)
        signs.append(sign)
        if sign > 0:
            running += row
        else:
            running -= row
    return TermSigns(np.array(signs, dtype=np.float64), squares, _mean_cross(gram, squares))


def _mean_cross(gram: Floats, squares: Floats) -> float:
    count = len(gram)
    if count < 2:
        return float("nan")
    return float(np.vdot(gram, gram) - squares @ squares) / (count * (count - 1))


@torch.no_grad()
def sign_terms(
    total: torch.Tensor,
    view: GradientView,
    terms: Floats,
    choose_sign: ChooseSign,
    centre: torch.Tensor | None = None,
) -> TermSigns:
    """Choose the sign of `v_k = sum_i terms_ki g_i - centre` for k = 0, 1, ... and add `s_k v_k` to `total` (S).

    <S_k, v_k> = <S, v_k> + sum_{j<k} s_j <v_j, v_k>
    """
    if view.stale:
        return _sign_against_start(total, view, terms, choose_sign, centre)
    products, gram = _products_and_gram(total, view, terms, centre)
    if view.regions():
        return _sign_streamed(total, view, terms, choose_sign, centre, products, gram)
    signed = sign_sequentially(products, gram, choose_sign)
    view.add_to(total, _tensor(signed.signs @ terms, total))
    if centre is not None:
        total.add_(centre, alpha=-float(signed.signs.sum()))
    return signed


def _sign_against_start(
    total: torch.Tensor, view: GradientView, terms: Floats, choose_sign: ChooseSign, centre: torch.Tensor | None
) -> TermSigns:
    """All signs against S as it was before the batch.

    The norms of single terms are not known. Their mean square follows from the norm of the signed sum, which is the
    change of S.
    """
    known, (before,) = _arrays(view.products(total), (total @ total).view(1))
    products = terms @ known
    if centre is not None:
        products -= float(total @ centre)
    signs = np.array([float(choose_sign(float(product), float("nan"))) for product in products])
    view.add_to(total, _tensor(signs @ terms, total))
    if centre is not None:
        total.add_(centre, alpha=-float(signs.sum()))
    square = max(0.0, float(total @ total) - float(before) - 2 * float(signs @ products)) / len(terms)
    return TermSigns(signs, np.full(len(terms), square), float("nan"))


def _products_and_gram(
    total: torch.Tensor, view: GradientView, terms: Floats, centre: torch.Tensor | None
) -> tuple[Floats, Floats]:
    """`<S, v_k>` and `<v_j, v_k>`, without the coordinates in `view.regions()`."""
    sums, table = _arrays(view.products(total), view.gram())
    products = _in_terms(terms, sums)
    gram = _in_terms(terms, _in_terms(terms, table).T)
    if centre is not None:
        outside = _without(centre, view.regions())
        with_centre = _in_terms(terms, _array(view.products(centre)))
        products -= float(_without(total, view.regions()) @ outside)
        gram += float(outside @ outside) - with_centre[:, None] - with_centre[None]
    return products, gram


def _in_terms(terms: Floats, rows: Floats) -> Floats:
    """`terms @ rows`; differences of neighbours, the usual case, need no matrix product."""
    if len(rows) == 2 * len(terms) and terms is repeated(PAIR, len(terms), len(rows)):
        differences: Floats = rows[0::2] - rows[1::2]
        return differences
    product: Floats = terms @ rows
    return product


def _sign_streamed(
    total: torch.Tensor,
    view: GradientView,
    terms: Floats,
    choose_sign: ChooseSign,
    centre: torch.Tensor | None,
    products: Floats,
    gram: Floats,
) -> TermSigns:
    """Inside the regions, materialize one term at a time, compare it with the running sum and add it."""
    regions, term = view.regions(), torch.empty_like(total)
    signs, squares = np.zeros(len(terms)), gram.diagonal().copy()
    for k, weights in enumerate(terms):
        for region in regions:
            term[region] = 0.0 if centre is None else -centre[region]
        view.add_regions_to(term, _tensor(weights, total))
        product = float(products[k] + gram[k, :k] @ signs[:k])
        along = [total[region] @ term[region] for region in regions]
        read = numbers(*along, *(term[region] @ term[region] for region in regions))
        for value, square in zip(read, read[len(regions) :], strict=False):
            product += value
            squares[k] += square
        signs[k] = choose_sign(product, float(squares[k]))
        for region in regions:
            total[region].add_(term[region], alpha=signs[k])
    view.add_to(total, _tensor(signs @ terms, total))
    if centre is not None:
        before = total.clone()
        total.add_(centre, alpha=-float(signs.sum()))
        for region in regions:
            total[region] = before[region]
    return TermSigns(signs, squares, float("nan"))


def _without(vector: torch.Tensor, regions: list[slice]) -> torch.Tensor:
    """The vector with zeros in the regions."""
    if not regions:
        return vector
    outside = vector.clone()
    for region in regions:
        outside[region] = 0
    return outside


def _array(values: torch.Tensor) -> Floats:
    return on_host(values).numpy()


def _arrays(*tensors: torch.Tensor) -> list[Floats]:
    """Tensors on the host; from a device they are copied together."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [_array(tensor) for tensor in tensors]
    joined = _array(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    starts = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(joined, starts), tensors, strict=True)]


def _tensor(values: Floats, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)
