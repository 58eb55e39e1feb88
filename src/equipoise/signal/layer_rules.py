"""How a layer's input and output gradient become factors: one rule per kind of layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .convolution import convolution
from .layer_factors import EmbeddingFactors, ExampleGradients, LayerFactors, LinearFactors, Span

ParameterSpans = tuple[Span | None, Span | None]  # of weight and bias; None where there is none or it is frozen


def linear(module: nn.Linear, spans: ParameterSpans, a: torch.Tensor, b: torch.Tensor) -> LayerFactors:
    count = len(a)
    return LinearFactors(*spans, a.reshape(count, -1, a.shape[-1]), b.reshape(count, -1, b.shape[-1]))


def embedding(module: nn.Embedding, spans: ParameterSpans, a: torch.Tensor, b: torch.Tensor) -> LayerFactors | None:
    if module.scale_grad_by_freq or module.max_norm is not None or module.sparse:
        return None  # the contribution of one example then depends on the others
    a = a.reshape(len(a), -1)
    b = b.reshape(*a.shape, b.shape[-1])
    if module.padding_idx is not None:
        b = b * (a != module.padding_idx).unsqueeze(-1)
    return EmbeddingFactors(*spans, a, b)


def layer_norm(module: nn.LayerNorm, spans: ParameterSpans, a: torch.Tensor, b: torch.Tensor) -> LayerFactors:
    normalized = F.layer_norm(a, module.normalized_shape, eps=module.eps)
    size = module.weight.numel()
    return _elementwise(spans, (b * normalized).reshape(len(a), -1, size).sum(1), b.reshape(len(a), -1, size).sum(1))


def group_norm(module: nn.GroupNorm, spans: ParameterSpans, a: torch.Tensor, b: torch.Tensor) -> LayerFactors:
    normalized = F.group_norm(a, module.num_groups, eps=module.eps)
    if a.ndim > 2:
        return _elementwise(spans, (b * normalized).flatten(2).sum(2), b.flatten(2).sum(2))
    return _elementwise(spans, b * normalized, b)


def _elementwise(spans: ParameterSpans, weight: torch.Tensor, bias: torch.Tensor) -> ExampleGradients:
    rows = [row for span, row in zip(spans, (weight, bias), strict=True) if span is not None]
    return ExampleGradients(*spans, torch.cat(rows, 1))


Rule = Callable[..., LayerFactors | None]
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv2d: convolution,
    nn.Conv1d: convolution,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
}


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a layer. A subclass that overrides `forward` has none."""
    for kind, rule in RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule
    return None
