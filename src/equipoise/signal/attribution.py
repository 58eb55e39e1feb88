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


def drawn_weights(count: int, number: int, like: torch.Tensor) -> list[torch.Tensor]:
    """1 for half of the examples and 0 for the others, then 1 and -1; another half for each `number`.

    The mean gradient dominates the first sum. It is not in the second one, which orders see.
    """
    rank = torch.randperm(count, generator=torch.Generator().manual_seed(number))
    half = (2 * rank < count).to(like)
    return [half, (2 * rank - count + 1).sign().to(like)] if count > 1 else [half]


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
    kind, autocast = weights.device.type, trained[0].autocast
    try:
        with torch.autocast(kind, dtype=autocast, enabled=autocast is not None):
            return view.vector(weights / view.items)
    except RuntimeError:  # it does not run a second time
        return None
