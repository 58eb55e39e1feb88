"""Whose gradient is it? The gradient of some examples of a pass, by repeating the model, to compare factors with.

The sum over all examples cannot tell: a layer that sees as many tokens as there are examples has the right sum and
gives every example a wrong part. So the model runs again on the same inputs, and backward starts from the gradients of
some examples' outputs. Not available where the outputs do not have the examples first.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from .replay_view import ModelCall, ReplayView


def drawn_examples(count: int, number: int, like: torch.Tensor) -> torch.Tensor:
    """1 for about half of the examples, 0 for the others; another half for each `number`."""
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(number))
    return (drawn <= drawn.median()).to(like)


def gradient_of(
    model: nn.Module, parameters: dict[str, nn.Parameter], calls: list[ModelCall], weights: torch.Tensor
) -> torch.Tensor | None:
    """`sum_i weights_i g_i` as backward scaled it; None where single examples cannot be told apart."""
    trained = [call for call in calls if any(b is not None for b in call.b)]
    if not trained or any(call.mixed for call in trained):
        return None
    # All examples are repeated, as they may be normalized together.
    repeated = [replace(call, random=True, first_use=number == 0) for number, call in enumerate(trained)]
    view = ReplayView(model, parameters, repeated)
    try:
        return view.vector(weights / view.items)
    except RuntimeError:  # such as half precision under autocast, which is over
        return None
