"""Hooks that keep the input and the output gradient of layers during one forward and backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core.errors import UserError
from .rules import Places, Rule


@dataclass
class Call:
    """One use of one layer."""

    module: nn.Module
    a: torch.Tensor
    shape: torch.Size
    b: torch.Tensor | None = None  # None until backward comes by

    def part(self, rule: Rule, places: Places, dtype: torch.dtype) -> Any:
        b = self.b if self.b is not None else self.a.new_zeros(self.shape, dtype=dtype)
        a = self.a.to(dtype) if self.a.is_floating_point() else self.a
        return rule(self.module, places, a, b.to(dtype))


@contextlib.contextmanager
def calls_of(modules: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """The uses of these layers inside the block, in the order of the forward pass."""
    found: list[Call] = []

    def forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not (isinstance(output, torch.Tensor) and output.requires_grad and args):
            return  # an evaluation in between, or the first pass of a checkpointed block
        call = Call(module, args[0].detach(), output.shape)
        found.append(call)
        output.register_hook(_keeper(call))

    handles = [module.register_forward_hook(forward) for module in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _keeper(call: Call) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        call.b = gradient if call.b is None else call.b + gradient

    return keep


def refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise UserError(
                f"{name} is a BatchNorm: it mixes the examples of a batch, so no example has a gradient of its own. Use GroupNorm "
                "(--model.norm group), or order whole batches: --order.signal batch --order.group SIZE_OF_A_BATCH"
            )
