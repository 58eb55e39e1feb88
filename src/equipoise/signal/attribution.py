"""Whose gradient is it? Gradients of some examples of a pass, by repeating the model, to compare factors with.

The sum over all examples cannot tell: a layer that sees as many tokens as there are examples has the right sum and
gives every example a wrong part. So the model runs again on the same inputs, and backward starts from the gradients of
some examples' outputs. Where the outputs do not have the examples first (a loss, tokens of all examples in a row), the
model runs without the last example: what has the examples first becomes shorter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .fused import is_fused
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
    try:
        with _as_before(trained[0], weights.device):
            return view.vector(weights / view.items)
    except RuntimeError:  # it does not run a second time
        return None


@dataclass
class OneFewer:
    """A pass without the last example."""

    outputs: bool = True  # do the outputs with a gradient have one row fewer?
    layers: dict[nn.Module, bool] = field(default_factory=dict)  # that were called: does every input?


def one_fewer(
    model: nn.Module, parameters: dict[str, nn.Parameter], calls: list[ModelCall], layers: Iterable[nn.Module]
) -> OneFewer | None:
    """The calls of the model, repeated without the last example; None where it cannot run so."""
    trained = [call for call in calls if call.mixed or any(b is not None for b in call.b)]
    seen, view = OneFewer(), ReplayView(model, parameters, trained)

    def after(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        first, result = tree_leaves((args, kwargs))[0], tree_leaves(output)[0]
        if isinstance(result, torch.Tensor) and result.requires_grad:  # not an evaluation
            side = 1 if is_fused(layer) and not layer.batch_first else 0
            seen.layers[layer] = seen.layers.get(layer, True) and first.shape[side : side + 1] == (
                trained[0].examples - 1,
            )

    handles = [layer.register_forward_hook(after, with_kwargs=True) for layer in layers]
    try:
        for call in trained:
            index = torch.arange(call.examples - 1, device=view.rows.device)
            if not any(_has(leaf, call.examples) for leaf in tree_leaves((call.args, call.kwargs))):
                return None
            with _as_before(call, view.rows.device):
                outputs = view.outputs_of(call, index)
            used = [leaf for leaf, b in zip(outputs, call.b, strict=True) if b is not None]
            seen.outputs &= all(_has(leaf, len(index)) for leaf in used)
    except Exception:  # whatever a model says about inputs of another shape
        return None
    finally:
        for handle in handles:
            handle.remove()
    return seen if trained else None


def without_examples(model: nn.Module, calls: list[ModelCall], layers: Iterable[nn.Module]) -> list[nn.Module]:
    """The layers whose input keeps its length without the last example. None where the model cannot run so."""
    alone = calls and calls[0].examples == 1  # nothing would be left
    seen = None if alone else one_fewer(model, dict(model.named_parameters()), calls, layers)
    return [] if seen is None else [layer for layer, shorter in seen.layers.items() if not shorter]


def _has(value: Any, examples: int) -> bool:
    return isinstance(value, torch.Tensor) and value.shape[:1] == (examples,)


def _as_before(call: ModelCall, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=call.autocast, enabled=call.autocast is not None)
