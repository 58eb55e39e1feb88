"""Which layers have factors, and which: one rule a kind of layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .convolution import convolved
from .factors_of_layer import Lookup, Made, Outer, Part, Place

Places = tuple[Place | None, Place | None]  # of weight and bias; None where there is none or it is frozen


def linear(module: nn.Linear, places: Places, a: torch.Tensor, b: torch.Tensor) -> Part:
    count = len(a)
    return Outer(*places, a.reshape(count, -1, a.shape[-1]), b.reshape(count, -1, b.shape[-1]))


def embedding(module: nn.Embedding, places: Places, a: torch.Tensor, b: torch.Tensor) -> Part | None:
    if module.scale_grad_by_freq or module.max_norm is not None or module.sparse:
        return None  # what one example contributes then depends on the others
    a = a.reshape(len(a), -1)
    b = b.reshape(*a.shape, b.shape[-1])
    if module.padding_idx is not None:
        b = b * (a != module.padding_idx).unsqueeze(-1)
    return Lookup(*places, a, b)


def layer_norm(module: nn.LayerNorm, places: Places, a: torch.Tensor, b: torch.Tensor) -> Part:
    normal = F.layer_norm(a, module.normalized_shape, eps=module.eps)
    size = module.weight.numel()
    return _scaled(places, (b * normal).reshape(len(a), -1, size).sum(1), b.reshape(len(a), -1, size).sum(1))


def group_norm(module: nn.GroupNorm, places: Places, a: torch.Tensor, b: torch.Tensor) -> Part:
    normal = F.group_norm(a, module.num_groups, eps=module.eps)
    return (
        _scaled(places, (b * normal).flatten(2).sum(2), b.flatten(2).sum(2))
        if a.ndim > 2
        else _scaled(places, b * normal, b)
    )


def _scaled(places: Places, weight: torch.Tensor, bias: torch.Tensor) -> Made:
    rows = [row for place, row in zip(places, (weight, bias), strict=True) if place is not None]
    return Made(*places, torch.cat(rows, 1))


Rule = Callable[..., Part | None]
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv2d: convolved,
    nn.Conv1d: convolved,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
}


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a layer. A subclass that changes `forward` is another layer."""
    for kind, rule in RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule
    return None
