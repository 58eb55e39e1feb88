from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..core.errors import UserError
from .base import Signal, sample_of
from .hooks import refuse_batch_norm
from .replay import Live, Pass, random_states


@dataclass
class Forward(Signal):
    """Products with every example's gradient by one forward-mode pass through the whole model: any architecture.

        <S, g_i> = b_i' (d y_i / d x) S        b_i: gradient of the output y_i, kept when backward comes by

    One pass with dual numbers gives the products of all examples, whatever the layers are: recurrent, fused attention,
    bare parameters, tied weights. S is moved by the gradient of one half of the batch, F, and the gradient of the whole
    that backward left, G: S += 2 F - G. Nothing tells products of examples with each other, so all signs of a batch are
    decided against the S of its beginning: as good as in sequence while half a batch is less than an eighth of the
    effective dimension.

    The first dimension of inputs and outputs must be the examples, and the loss a mean over them.
    """

    def init_state(self) -> None:
        self.model: nn.Module | None = None
        self.passes: list[Pass] = []
        self.before = torch.zeros(1)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if model is not self.model:
            refuse_batch_norm(model)
            self.model = model
            self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.passes:
            self.before = sample_of(self.parameters.values())
        with _calls(model, examples) as calls:
            yield
        seen = [call for call in calls if any(b is not None for b in call.b)]
        if not seen:
            raise UserError(
                "no output of the model got a gradient with the examples first: use --order.signal batch with --order.group SIZE"
            )
        for number, call in enumerate(seen):
            call.opens = number == 0
        self.passes += seen

    def forget(self) -> None:
        self.passes = []

    def view(self) -> Live:
        assert self.model is not None
        passes, self.passes = self.passes, []
        view = Live(self.model, self.parameters, passes)
        view.sample = (sample_of(self.parameters.values()) - self.before) * view.items
        view.fresh = not self.before.any()
        return view


@contextlib.contextmanager
def _calls(model: nn.Module, examples: int) -> Iterator[list[Pass]]:
    """The uses of the model inside the block, with the random numbers they began with."""
    found: list[Pass] = []
    began: list[list[torch.Tensor]] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        began.append(random_states(module))

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        states = began.pop()
        leaves = tree_leaves(output)
        if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            return  # an evaluation in between
        ended = random_states(module)
        drew = any(not torch.equal(one, two) for one, two in zip(states, ended, strict=True))
        call = Pass(args, kwargs, examples, states, drew, [None] * len(leaves))
        found.append(call)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.ndim and len(leaf) == examples:
                leaf.register_hook(call.keeper(place))

    handles = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
