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


def idle(module: nn.Module, spans: ParameterSpans, count: int, like: torch.Tensor) -> LayerFactors:
    """The factors of a layer that this pass did not go through: zeros, so that all passes have the same layers."""
    if isinstance(module, nn.Linear):
        shapes = (count, 1, module.in_features), (count, 1, module.out_features)
        return LinearFactors(*spans, *(like.new_zeros(shape) for shape in shapes))
    if isinstance(module, nn.Embedding):
        tokens = torch.zeros(count, 1, dtype=torch.int64, device=like.device)
        return EmbeddingFactors(*spans, tokens, like.new_zeros(count, 1, module.embedding_dim))
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        reach = [(size - 1) * far + 1 for size, far in zip(module.kernel_size, module.dilation, strict=True)]
        image = like.new_zeros(count, module.in_channels, *reach)
        outputs = like.new_zeros(count, module.out_channels, *[1] * len(reach))
        return convolution(module, spans, image, outputs, padded=False)
    return ExampleGradients(*spans, like.new_zeros(count, sum(span.size for span in spans if span is not None)))


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
