"""Which layers do not see the examples first? Where a batch has as many examples as tokens, shapes cannot tell."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from .replay_view import ModelCall, repeating


@torch.enable_grad()
def layers_without_examples(model: nn.Module, calls: list[ModelCall], modules: Collection[nn.Module]) -> set[nn.Module]:
    """Those whose input keeps its length while the model runs once more with the first example twice.

    None where the model was not called as a whole, or takes no other number of examples.
    """
    found: set[nn.Module] = set()
    if not calls:
        return found
    call = calls[0]

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], torch.Tensor) and args[0].ndim and len(args[0]) == call.examples:
            found.add(module)

    def longer(value: Any) -> Any:
        is_batch = isinstance(value, torch.Tensor) and value.ndim and len(value) == call.examples
        return torch.cat([value, value[:1]]) if is_batch else value

    handles = [module.register_forward_pre_hook(keep) for module in modules]
    try:
        with repeating(model, call):
            state = {name: buffer.clone() for name, buffer in model.named_buffers()} | dict(model.named_parameters())
            functional_call(model, state, tree_map(longer, call.args), tree_map(longer, call.kwargs))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return set()
    finally:
        for handle in handles:
            handle.remove()
    return found
