"""Hooks that keep the calls of a model, so that they can be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .hooks import on_gradient
from .replay_view import ModelCall, random_states


@contextlib.contextmanager
def model_calls(model: nn.Module, examples: int) -> Iterator[list[ModelCall]]:
    """The calls of the model inside the block, with the random states that they began with."""
    calls: list[ModelCall] = []
    began: list[list[torch.Tensor]] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        began.append(random_states(module))

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        states = began.pop()
        leaves = tree_leaves(output)
        if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            return  # an evaluation
        ended = random_states(module)
        random = any(not torch.equal(one, two) for one, two in zip(states, ended, strict=True))
        call = ModelCall(args, kwargs, examples, states, random, [None] * len(leaves))
        kind = next(module.parameters()).device.type
        call.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        calls.append(call)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                first = leaf.ndim and len(leaf) == examples
                on_gradient(leaf, call.keeper(number) if first else call.mix)

    handles = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
