"""A view of a batch through the model itself, which is run again: forward mode for products, backward for sums."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.autograd.forward_ad as dual
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from .base import GradientView
from .rows import Rows

_ROUNDING = 1e-3  # of the products' size: by more than this a gradient is not the sum over the examples


@dataclass
class Pass:
    """One use of the model: what went in, the random numbers it began with, and the gradients of what came out."""

    args: Any
    kwargs: Any
    examples: int
    states: list[torch.Tensor]
    drew: bool  # it used random numbers (dropout): the same examples alone would get others
    b: list[torch.Tensor | None]
    opens: bool = True  # false for a further use of the model on the same examples

    def keeper(self, place: int) -> Callable[[torch.Tensor], None]:
        def keep(gradient: torch.Tensor) -> None:
            known = self.b[place]
            self.b[place] = gradient if known is None else known + gradient

        return keep


class Live(GradientView):
    """Vectors of examples that were `made` before, then those of passes that can be run again with the same weights.

    It holds until the weights change: `take` makes the vectors.
    """

    stale: ClassVar[bool] = True

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], passes: list[Pass]):
        self.model, self.parameters, self.passes = model, parameters, passes
        first = next(iter(parameters.values()))
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.dimension = sum(p.numel() for p in parameters.values())
        self.made = torch.zeros(0, self.dimension, dtype=self.dtype, device=first.device)
        self.live = sum(one.examples for one in passes if one.opens)
        self.items, self.sizes = self.live, [1] * self.live
        self.fresh = False  # is the gradient in place that of these examples alone?

    @torch.no_grad()
    def products(self, vector: torch.Tensor) -> torch.Tensor:
        found, start = [], 0
        tangents = {}
        for name, p in self.parameters.items():
            tangents[name] = vector[start : start + p.numel()].view_as(p).to(p.dtype)
            start += p.numel()
        _load_rules()
        for one in self.passes:
            with dual.dual_level(), _repeated(self.model, one):
                weights = {n: dual.make_dual(p.detach(), tangents[n]) for n, p in self.parameters.items()}
                outputs = tree_leaves(self._run(weights, one.args, one.kwargs))
                sums = self.made.new_zeros(one.examples)
                for leaf, b in zip(outputs, one.b, strict=True):
                    tangent = dual.unpack_dual(leaf).tangent if b is not None else None
                    if tangent is not None:
                        sums += (tangent * b).flatten(1).sum(1, dtype=self.dtype)
            if one.opens:
                found.append(sums)
            else:
                found[-1] += sums
        mine = torch.cat(found) * self.live
        if self.fresh:
            self.fresh = self._is_sum(vector, mine)
        return torch.cat([self.made @ vector, mine]) if len(self.made) else mine

    def _is_sum(self, vector: torch.Tensor, products: torch.Tensor) -> bool:
        """`<S, G>` against the sum of `<S, g_i>`: a penalty or a hook on the gradient would make S drift."""
        start, total = 0, 0.0
        for p in self.parameters.values():
            if p.grad is not None:
                total += float(vector[start : start + p.numel()] @ p.grad.reshape(-1).to(self.dtype))
            start += p.numel()
        return abs(total * self.live - float(products.sum())) <= _ROUNDING * float(products.abs().sum())

    def gram(self) -> torch.Tensor:
        """Exact and slow, for tests and short models: every vector is made."""
        rows = self.vectors(torch.eye(self.items, dtype=self.dtype, device=self.made.device))
        return rows @ rows.T

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        before = len(self.made)
        if before:
            vector.addmv_(self.made.T, weights[:before])
        values = weights[before:].tolist()
        common = Counter(values).most_common(1)[0][0] if self.fresh else 0.0
        start = 0
        for p in self.parameters.values() if common else ():
            if p.grad is not None:
                vector[start : start + p.numel()].add_(p.grad.reshape(-1), alpha=common * self.live)
            start += p.numel()
        self._add_some(vector, [value - common for value in values])

    @torch.enable_grad()
    def _add_some(self, vector: torch.Tensor, weights: list[float]) -> None:
        """Backward through the examples whose weight is not zero. Those of a pass with random numbers are all taken."""
        start = 0
        for one in self.passes:
            start -= 0 if one.opens else one.examples
            mine = [value * self.live for value in weights[start : start + one.examples]]
            start += one.examples
            touched = range(one.examples) if one.drew else [i for i, value in enumerate(mine) if value]
            if not any(mine):
                continue
            index = torch.tensor(touched, device=vector.device)
            few = torch.tensor([mine[i] for i in touched], dtype=self.dtype, device=vector.device)

            def rows(value: Any, index: torch.Tensor = index, one: Pass = one) -> Any:
                is_batch = isinstance(value, torch.Tensor) and value.ndim and len(value) == one.examples
                return value[index] if is_batch and not one.drew else value

            with _repeated(self.model, one):
                leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
                outputs = tree_leaves(self._run(leaves, tree_map(rows, one.args), tree_map(rows, one.kwargs)))
            kept = [(y, b[index]) for y, b in zip(outputs, one.b, strict=True) if b is not None]
            seeds = [b * few.to(b.dtype).view(-1, *[1] * (b.ndim - 1)) for _, b in kept]
            found = torch.autograd.grad([y for y, _ in kept], list(leaves.values()), seeds, allow_unused=True)
            place = 0
            for p, gradient in zip(leaves.values(), found, strict=True):
                if gradient is not None:
                    vector[place : place + p.numel()] += gradient.detach().reshape(-1)
                place += p.numel()

    def _run(self, weights: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        return functional_call(self.model, {**buffers, **weights}, args, kwargs)

    def regions(self) -> list[slice]:
        return []

    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None: ...

    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        found = weights.new_zeros(len(weights), self.dimension)
        before = len(self.made)
        for row, some in zip(found, weights, strict=True):
            row.addmv_(self.made.T, some[:before])
            self._add_some(row, some[before:].tolist())
        return found

    def zeros(self) -> torch.Tensor:
        return self.made.new_zeros(self.dimension)

    def take(self, items: list[int]) -> Rows:
        chosen = torch.eye(self.items, dtype=self.dtype, device=self.made.device)[items]
        return Rows(self.vectors(chosen), [1] * len(items))

    def join(self, later: GradientView) -> GradientView:
        return self.take(list(range(self.items))).join(later)

    def after(self, earlier: Rows) -> Live:
        """The same passes behind vectors that were made before."""
        view = Live(self.model, self.parameters, self.passes)
        view.made = torch.cat([earlier.rows, self.made])
        view.items, view.sizes = len(view.made) + self.live, earlier.sizes + self.sizes
        view.sample, view.fresh = self.sample, self.fresh
        return view

    def state(self) -> Any:
        return self.take(list(range(self.items))).state()


@functools.cache
def _load_rules() -> None:
    """torch loads some rules of forward mode at first use, by a way that it warns of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def random_states(model: nn.Module) -> list[torch.Tensor]:
    first = next(model.parameters())
    here = [torch.cuda.get_rng_state(first.device)] if first.device.type == "cuda" else []
    return [torch.get_rng_state(), *here]


@contextlib.contextmanager
def _repeated(model: nn.Module, one: Pass) -> Iterator[None]:
    """The random numbers of the pass, and kernels that know forward mode."""
    first = next(model.parameters())
    devices = [first.device] if first.device.type == "cuda" else []
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    enabled = torch.backends.mkldnn.enabled
    if recurrent:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        with (
            torch.random.fork_rng(devices),
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.cudnn.flags(enabled=not recurrent),
        ):
            torch.set_rng_state(one.states[0])
            if devices:
                torch.cuda.set_rng_state(one.states[1], first.device)
            yield
    finally:
        torch.backends.mkldnn.enabled = enabled
