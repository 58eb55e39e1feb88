"""Hooks that keep the input and the output gradient of layers during one forward and backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core.errors import UserError
from .layer_factors import LayerFactors
from .layer_rules import ParameterSpans, Rule


@dataclass
class LayerCall:
    """One call of one layer."""

    module: nn.Module
    a: torch.Tensor
    shape: torch.Size
    b: torch.Tensor | None = None  # None until the backward pass

    def keep(self, gradient: torch.Tensor) -> None:
        self.b = gradient if self.b is None else self.b + gradient

    def factors(self, rule: Rule, spans: ParameterSpans, dtype: torch.dtype) -> LayerFactors | None:
        b = self.b if self.b is not None else self.a.new_zeros(self.shape, dtype=dtype)
        a = self.a.to(dtype) if self.a.is_floating_point() else self.a
        return rule(self.module, spans, a, b.to(dtype))


@contextlib.contextmanager
def layer_calls(modules: Iterable[nn.Module]) -> Iterator[list[LayerCall]]:
    """The calls of these layers inside the block, in the order of the forward pass."""
    calls: list[LayerCall] = []

    def forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (isinstance(output, torch.Tensor) and output.requires_grad and args):
            return  # an evaluation, or the first pass of a checkpointed block
        call = LayerCall(module, args[0].detach(), output.shape)
        calls.append(call)
        on_gradient(output, call.keep)

    handles = [module.register_forward_hook(forward) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def on_gradient(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    """Call `hook` with the gradient of `tensor` in the backward pass."""
    register: Callable[..., Any] = tensor.register_hook
    register(hook)


def refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise UserError(
                f"{name} is a BatchNorm: it mixes the examples of a batch, so no example has a gradient of its own. "
                "Use GroupNorm (--model.norm group), or order entire batches: --order.signal batch --order.group SIZE"
            )
