"""Layers that hide their linear maps: recurrent ones and `nn.MultiheadAttention`.

The layer is computed again from its inputs with a zero added to the result of every linear map. The gradient of that
zero is the output gradient of the map, and the map's factors follow as for `nn.Linear`. Exact, at the price of the
layer's forward and backward pass without the products for its weights. Where the layer cannot be recomputed (dropout
inside it, packed sequences, projections) there are no factors, and its parameters are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .attention import attention, thirds
from .hooks import on_gradient
from .layer_factors import LinearFactors, Span
from .recurrent import recurrent


@dataclass
class FusedCall:
    """One call of a fused layer."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    b: list[torch.Tensor | None] = field(default_factory=list)  # of every output; None until the backward pass

    @torch.enable_grad()
    def factors(self, span_of: Callable[[Any], Span | None], examples: int, dtype: torch.dtype) -> list[LinearFactors]:
        rule: Any = recurrent if isinstance(self.module, nn.RNNBase) else attention
        b = [None if gradient is None else gradient.to(dtype) for gradient in self.b]
        maps: list[LinearFactors] = rule(self.module, self.args, self.kwargs, b, span_of, dtype)
        return [factors for factors in maps if len(factors.a) == examples and factors.spans()]


@contextlib.contextmanager
def fused_calls(modules: Iterable[nn.Module]) -> Iterator[list[FusedCall]]:
    """The calls of these layers inside the block, in the order of the forward pass."""
    calls: list[FusedCall] = []

    def forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        leaves = tree_leaves(output)
        if not (isinstance(leaves[0], torch.Tensor) and leaves[0].requires_grad):
            return
        call = FusedCall(module, args, kwargs, [None] * len(leaves))
        calls.append(call)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                on_gradient(leaf, _keeper(call, number))

    handles = [module.register_forward_hook(forward, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def idle_maps(
    module: nn.Module, span_of: Callable[[Any], Span | None], examples: int, like: torch.Tensor
) -> list[LinearFactors]:
    """The factors of a layer that this pass did not go through: zeros, so that all passes have the same layers.

    Attention counts as self-attention.
    """
    if isinstance(module, nn.MultiheadAttention):
        packed = module.in_proj_weight is not None
        inputs = (
            [module.in_proj_weight] if packed else [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        )
        biases = [span_of(module.in_proj_bias)] if packed else thirds(span_of(module.in_proj_bias))
        weights, shifts = [*inputs, module.out_proj.weight], [*biases, span_of(module.out_proj.bias)]
    else:
        names = [
            name for name, _ in module.named_parameters(recurse=False) if name.startswith(("weight_i", "weight_hh"))
        ]
        weights = [getattr(module, name) for name in names]
        shifts = [span_of(getattr(module, name.replace("weight", "bias"), None)) for name in names]
    maps = [
        LinearFactors(span_of(weight), shift, *(like.new_zeros(examples, 1, side) for side in reversed(weight.shape)))
        for weight, shift in zip(weights, shifts, strict=True)
    ]
    return [factors for factors in maps if factors.spans()]


def _keeper(call: FusedCall, number: int) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        known = call.b[number]
        call.b[number] = gradient if known is None else known + gradient

    return keep


def is_fused(module: nn.Module) -> bool:
    """A subclass that overrides `forward` is not."""
    kinds = (nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention)
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)
