from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..core.errors import UserError
from .base import Signal, sample_of
from .hooks import refuse_batch_norm
from .model_calls import model_calls
from .replay_view import ModelCall, ReplayView


@dataclass
class Forward(Signal):
    """Products with every example's gradient by one forward-mode pass through the model: any architecture.

        <S, g_i> = b_i' (d y_i / d x) S        b_i: gradient of the output y_i, kept during backward

    One pass with dual numbers gives the products of all examples, whatever the layers are: recurrent, fused attention,
    bare parameters, tied weights. S is updated with the gradient F of one half of the batch and the gradient G of the
    batch that backward left: S += 2 F - G. Inner products of examples are not available, so all signs of a batch are
    chosen against the S before it: as good as in sequence while half a batch is less than an eighth of the effective
    dimension.

    The first dimension of inputs and outputs must be the examples, and the loss a mean over them.
    """

    def init_state(self) -> None:
        self.model: nn.Module | None = None
        self.calls: list[ModelCall] = []
        self.before = torch.zeros(1)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if model is not self.model:
            refuse_batch_norm(model)
            self.model = model
            self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.calls:
            self.before = sample_of(self.parameters.values())
        with model_calls(model, examples) as calls:
            yield
        trained = [call for call in calls if any(b is not None for b in call.b)]
        if not trained:
            raise UserError(
                "no output of the model got a gradient with the examples first: use --order.signal batch with "
                "--order.group SIZE"
            )
        for number, call in enumerate(trained):
            call.first_use = number == 0
        self.calls += trained

    def forget(self) -> None:
        self.calls = []

    def view(self) -> ReplayView:
        assert self.model is not None
        calls, self.calls = self.calls, []
        view = ReplayView(self.model, self.parameters, calls)
        view.sample = (sample_of(self.parameters.values()) - self.before) * view.items
        view.gradient_is_sum = not self.before.any()
        return view
