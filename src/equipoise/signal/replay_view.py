"""The gradients of a batch by running the model again: forward mode for products, backward for sums."""

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
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from ..core.device import numbers
from ..core.random import generator_states, set_generator_states
from .base import GradientView
from .rows import Rows

_ROUNDING = 1e-3  # of the size of the products: a larger difference means that a gradient is not the sum over examples

# torch has no annotations for these.
_make_dual: Callable[..., torch.Tensor] = forward_ad.make_dual
_unpack_dual: Callable[..., Any] = forward_ad.unpack_dual


@dataclass
class ModelCall:
    """One call of the model: its inputs, the random states it began with, and the gradients of its outputs."""

    args: Any
    kwargs: Any
    examples: int
    states: list[torch.Tensor]
    random: bool  # it drew random numbers (dropout): a subset of the examples would draw others
    b: list[torch.Tensor | None]
    first_use: bool = True  # False for a further call of the model on the same examples
    autocast: torch.dtype | None = None  # what it began under
    mixed: bool = False  # an output without the examples first had a gradient

    def keeper(self, number: int) -> Callable[[torch.Tensor], None]:
        def keep(gradient: torch.Tensor) -> None:
            known = self.b[number]
            self.b[number] = gradient if known is None else known + gradient

        return keep

    def mix(self, gradient: torch.Tensor) -> None:
        self.mixed = True

    def inputs_of(self, index: torch.Tensor) -> tuple[Any, Any]:
        """The inputs of some examples."""

        def part(value: Any) -> Any:
            is_batch = isinstance(value, torch.Tensor) and value.ndim and len(value) == self.examples
            return value[index] if is_batch else value

        return tree_map(part, self.args), tree_map(part, self.kwargs)


class ReplayView(GradientView):
    """Gradients in memory (`rows`), then those of calls of the model that can be repeated with the same weights.

    It is valid until the weights change: `take` materializes the vectors.
    """

    stale: ClassVar[bool] = True

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], calls: list[ModelCall]):
        self.model, self.parameters, self.calls = model, parameters, calls
        first = next(iter(parameters.values()))
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.dimension = sum(p.numel() for p in parameters.values())
        self.rows = torch.zeros(0, self.dimension, dtype=self.dtype, device=first.device)
        self.replayed = sum(call.examples for call in calls if call.first_use)
        self.items, self.sizes = self.replayed, [1] * self.replayed
        self.gradient_is_sum = False  # is `p.grad` the sum over these examples and nothing else?

    @torch.no_grad()
    def products(self, vector: torch.Tensor) -> torch.Tensor:
        products: list[torch.Tensor] = []
        tangents, start = {}, 0
        for name, p in self.parameters.items():
            tangents[name] = vector[start : start + p.numel()].view_as(p).to(p.dtype)
            start += p.numel()
        _load_jvp_rules()
        for call in self.calls:
            with forward_ad.dual_level(), _repeating(self.model, call):
                weights = {n: _make_dual(p.detach(), tangents[n]) for n, p in self.parameters.items()}
                outputs = tree_leaves(self._run(weights, call.args, call.kwargs))
                sums = self.rows.new_zeros(call.examples)
                for leaf, b in zip(outputs, call.b, strict=True):
                    tangent = _unpack_dual(leaf).tangent if b is not None else None
                    if tangent is not None:
                        sums += (tangent * b).flatten(1).sum(1, dtype=self.dtype)
            if call.first_use:
                products.append(sums)
            else:
                products[-1] += sums
        replayed = torch.cat(products) * self.replayed
        if self.gradient_is_sum:
            self.gradient_is_sum = self._is_sum(vector, replayed)
        return torch.cat([self.rows @ vector, replayed]) if len(self.rows) else replayed

    def _is_sum(self, vector: torch.Tensor, products: torch.Tensor) -> bool:
        """`<S, G>` against the sum of `<S, g_i>`: a penalty or a hook on the gradient would make S drift."""
        start, total, parts = 0, 0.0, []
        for p in self.parameters.values():
            if p.grad is not None:
                parts.append(vector[start : start + p.numel()] @ p.grad.reshape(-1).to(self.dtype))
            start += p.numel()
        *read, claimed, size = numbers(*parts, products.sum(), products.abs().sum())
        for part in read:
            total += part
        return abs(total * self.replayed - claimed) <= _ROUNDING * size

    def gram(self) -> torch.Tensor:
        """Exact and slow, for tests and small models: every vector is materialized."""
        rows = self.vectors(torch.eye(self.items, dtype=self.dtype, device=self.rows.device))
        return rows @ rows.T

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        before = len(self.rows)
        if before:
            vector.addmv_(self.rows.T, weights[:before])
        values = weights[before:].tolist()
        common = Counter(values).most_common(1)[0][0] if self.gradient_is_sum else 0.0
        start = 0
        for p in self.parameters.values() if common else ():
            if p.grad is not None:
                vector[start : start + p.numel()].add_(p.grad.reshape(-1), alpha=common * self.replayed)
            start += p.numel()
        self._add_replayed(vector, [value - common for value in values])

    @torch.enable_grad()
    def _add_replayed(self, vector: torch.Tensor, weights: list[float]) -> None:
        """Backward through the examples with nonzero weight, or through all where the call drew random numbers."""
        start = 0
        for call in self.calls:
            start -= 0 if call.first_use else call.examples
            scaled = [value * self.replayed for value in weights[start : start + call.examples]]
            start += call.examples
            chosen = range(call.examples) if call.random else [i for i, value in enumerate(scaled) if value]
            if not any(scaled):
                continue
            index = torch.tensor(chosen, device=vector.device)
            chosen_weights = torch.tensor([scaled[i] for i in chosen], dtype=self.dtype, device=vector.device)
            args, kwargs = (call.args, call.kwargs) if call.random else call.inputs_of(index)
            with _repeating(self.model, call):
                leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
                outputs = tree_leaves(self._run(leaves, args, kwargs))
            trained = [(y, b[index]) for y, b in zip(outputs, call.b, strict=True) if b is not None]
            seeds = [b * chosen_weights.to(b.dtype).view(-1, *[1] * (b.ndim - 1)) for _, b in trained]
            gradients = torch.autograd.grad([y for y, _ in trained], list(leaves.values()), seeds, allow_unused=True)
            offset = 0
            for p, gradient in zip(leaves.values(), gradients, strict=True):
                if gradient is not None:
                    vector[offset : offset + p.numel()] += gradient.detach().reshape(-1)
                offset += p.numel()

    @torch.enable_grad()
    def outputs_of(self, call: ModelCall, index: torch.Tensor) -> list[Any]:
        """The outputs for some of the examples."""
        with _repeating(self.model, call):
            return tree_leaves(self._run({}, *call.inputs_of(index)))

    def _run(self, weights: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        return functional_call(self.model, {**buffers, **weights}, args, kwargs)

    def regions(self) -> list[slice]:
        return []

    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None: ...

    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        rows = weights.new_zeros(len(weights), self.dimension)
        before = len(self.rows)
        for row, row_weights in zip(rows, weights, strict=True):
            row.addmv_(self.rows.T, row_weights[:before])
            self._add_replayed(row, row_weights[before:].tolist())
        return rows

    def zeros(self) -> torch.Tensor:
        return self.rows.new_zeros(self.dimension)

    def take(self, items: list[int]) -> Rows:
        chosen = torch.eye(self.items, dtype=self.dtype, device=self.rows.device)[items]
        return Rows(self.vectors(chosen), [1] * len(items))

    def join(self, later: GradientView) -> GradientView:
        return self.take(list(range(self.items))).join(later)

    def after(self, earlier: Rows) -> ReplayView:
        """The same calls behind vectors of an earlier batch."""
        view = ReplayView(self.model, self.parameters, self.calls)
        view.rows = torch.cat([earlier.rows, self.rows])
        view.items, view.sizes = len(view.rows) + self.replayed, earlier.sizes + self.sizes
        view.sample, view.gradient_is_sum = self.sample, self.gradient_is_sum
        return view

    def state(self) -> dict[str, Any]:
        return self.take(list(range(self.items))).state()


@functools.cache
def _load_jvp_rules() -> None:
    """torch loads some rules of forward mode at first use, with a deprecation warning of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def random_states(model: nn.Module) -> list[torch.Tensor]:
    return generator_states(next(model.parameters()).device)


@contextlib.contextmanager
def _repeating(model: nn.Module, call: ModelCall) -> Iterator[None]:
    """The random states of the call, and kernels that support forward mode."""
    device = next(model.parameters()).device
    kept = generator_states(device)
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    enabled = torch.backends.mkldnn.enabled
    if recurrent:
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.cudnn.flags(enabled=not recurrent),
        ):
            set_generator_states(device, call.states)
            yield
    finally:
        set_generator_states(device, kept)
        torch.backends.mkldnn.enabled = enabled
