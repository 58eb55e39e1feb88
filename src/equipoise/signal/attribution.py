"""Whose gradient is it? Gradients of some examples of a pass, by repeating the model, to compare factors with.

The sum over all examples cannot tell: a layer that sees as many tokens as there are examples has the right sum and
gives every example a wrong part. So the model runs again on the same inputs, and backward starts from the gradients of
some examples' outputs. Where the outputs do not have the examples first (a loss, tokens of all examples in a row), the
model runs on another number of examples: only what has the examples first changes its length.
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
class Resized:
    """A pass with another number of examples."""

    outputs: bool = True  # do the outputs with a gradient have as many rows?
    layers: dict[nn.Module, bool] = field(default_factory=dict)  # that were called: does every input?


def resized(
    model: nn.Module, parameters: dict[str, nn.Parameter], calls: list[ModelCall], layers: Iterable[nn.Module]
) -> Resized | None:
    """The calls of the model, repeated with another number of examples; None where it cannot run so.

    Without the last example. But one or two get another one: `squeeze()` takes away the dimension of a single example.
    """
    trained = [call for call in calls if call.mixed or any(b is not None for b in call.b)]
    if not trained:
        return None
    seen, view, examples = Resized(), ReplayView(model, parameters, trained), trained[0].examples
    count = examples - 1 if examples > 2 else examples + 1
    index = torch.arange(count, device=view.rows.device) % examples

    def after(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        first, result = tree_leaves((args, kwargs))[0], tree_leaves(output)[0]
        if isinstance(result, torch.Tensor) and result.requires_grad:  # not an evaluation
            side = 1 if is_fused(layer) and not layer.batch_first else 0
            seen.layers[layer] = seen.layers.get(layer, True) and first.shape[side : side + 1] == (count,)

    handles = [layer.register_forward_hook(after, with_kwargs=True) for layer in layers]
    try:
        for call in trained:
            if not any(_has(leaf, examples) for leaf in tree_leaves((call.args, call.kwargs))):
                return None
            with _as_before(call, view.rows.device):
                outputs = view.outputs_of(call, index)
            used = [leaf for leaf, b in zip(outputs, call.b, strict=True) if b is not None]
            seen.outputs &= all(_has(leaf, count) for leaf in used)
    except Exception:  # whatever a model says about inputs of another shape
        return None
    finally:
        for handle in handles:
            handle.remove()
    return seen


def without_examples(model: nn.Module, calls: list[ModelCall], layers: Iterable[nn.Module]) -> list[nn.Module]:
    """The layers whose input has the same length on another number of examples. None where the model cannot run so."""
    seen = resized(model, dict(model.named_parameters()), calls, layers)
    return [] if seen is None else [layer for layer, fits in seen.layers.items() if not fits]


def _has(value: Any, examples: int) -> bool:
    return isinstance(value, torch.Tensor) and value.shape[:1] == (examples,)


def _as_before(call: ModelCall, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=call.autocast, enabled=call.autocast is not None)
