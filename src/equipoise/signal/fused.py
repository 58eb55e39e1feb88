"""Layers that hide their linear maps: recurrent ones and `nn.MultiheadAttention`.

What such a layer computed is computed again from its inputs with a zero added to the result of every linear map; the
gradient of that zero is the output gradient of the map, and the map's part follows as for `nn.Linear`. Exact, at the
price of the layer's forward and backward pass without the products for its weights. Where it cannot be repeated
(dropout inside the layer, packed sequences, projections) there are no parts, and the parameters are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .attention import attention
from .factors_of_layer import Part, Place
from .recurrent import recurrent


@dataclass
class FusedCall:
    """One use of a fused layer."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    b: list[torch.Tensor | None] = field(default_factory=list)  # of every output; None until backward comes by

    @torch.enable_grad()
    def parts(self, place: Callable[[Any], Place | None], examples: int, dtype: torch.dtype) -> list[Part]:
        rule: Any = recurrent if isinstance(self.module, nn.RNNBase) else attention
        b = [None if one is None else one.to(dtype) for one in self.b]
        parts = rule(self.module, self.args, self.kwargs, b, place, dtype)
        return [part for part in parts if len(part.a) == examples and part.places()]


@contextlib.contextmanager
def fused_calls(modules: Iterable[nn.Module]) -> Iterator[list[FusedCall]]:
    """The uses of these layers inside the block, in the order of the forward pass."""
    found: list[FusedCall] = []

    def forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        leaves = tree_leaves(output)
        if not (isinstance(leaves[0], torch.Tensor) and leaves[0].requires_grad):
            return
        call = FusedCall(module, args, kwargs, [None] * len(leaves))
        found.append(call)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(_keeper(call, number))

    handles = [module.register_forward_hook(forward, with_kwargs=True) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _keeper(call: FusedCall, number: int) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        known = call.b[number]
        call.b[number] = gradient if known is None else known + gradient

    return keep


def is_fused(module: nn.Module) -> bool:
    """A subclass that changes `forward` is another layer."""
    kinds = (nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention)
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)
