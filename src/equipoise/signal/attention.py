"""The factors of `nn.MultiheadAttention`: the input projections (query, key, value) and the output projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .layer_factors import LinearFactors, Span

_NAMES = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")


def attention(
    module: nn.MultiheadAttention,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    b: list[torch.Tensor | None],
    span_of: Callable[[Any], Span | None],
    dtype: torch.dtype,
) -> list[LinearFactors]:
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    inputs = [given[name] for name in _NAMES[:3]]
    dropped = module.dropout > 0 and module.training
    unsupported = module.bias_k is not None or module.add_zero_attn or any(g is not None for g in b[1:])
    if dropped or unsupported or inputs[0].ndim != 3:
        return []
    self_attention = inputs[0] is inputs[1] is inputs[2]
    inputs = [(x if module.batch_first else x.transpose(0, 1)).detach().to(dtype) for x in inputs]
    width, heads = module.embed_dim, module.num_heads
    packed = module.in_proj_weight is not None
    separate = None if packed else [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    weights = module.in_proj_weight.chunk(3) if separate is None else separate
    shifts = module.in_proj_bias.chunk(3) if module.in_proj_bias is not None else [None] * 3
    zeros = [x.new_zeros(*x.shape[:2], width, requires_grad=True) for x in inputs]
    q, k, v = (
        (F.linear(x, w.detach().to(dtype), None if s is None else s.detach().to(dtype)) + zero)
        .unflatten(2, (heads, -1))
        .transpose(1, 2)
        for x, w, s, zero in zip(inputs, weights, shifts, zeros, strict=True)
    )
    with sdpa_kernel(SDPBackend.MATH):
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(given, q, k))
    attended = attended.transpose(1, 2).flatten(2)
    y = b[0] if b[0] is not None else attended.new_zeros(inputs[0].shape)
    y = y if module.batch_first or b[0] is None else y.transpose(0, 1)
    gradients = torch.autograd.grad(attended, zeros, y @ module.out_proj.weight.detach().to(dtype))
    spans = thirds(span_of(module.in_proj_weight)) if packed else [span_of(w) for w in weights]
    biases = thirds(span_of(module.in_proj_bias))
    out = LinearFactors(span_of(module.out_proj.weight), span_of(module.out_proj.bias), attended.detach(), y)
    if self_attention and packed:
        weight, bias = span_of(module.in_proj_weight), span_of(module.in_proj_bias)
        return [LinearFactors(weight, bias, inputs[0], torch.cat(gradients, 2)), out]
    return [*(LinearFactors(*row) for row in zip(spans, biases, inputs, gradients, strict=True)), out]


def thirds(span: Span | None) -> list[Span | None]:
    """Query, key and value in a packed projection."""
    if span is None:
        return [None] * 3
    third = span.size // 3
    return [Span(span.start + i * third, span.start + (i + 1) * third) for i in range(3)]


def _mask(given: dict[str, Any], q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """The sum of both masks, which is added to the scores of all examples and heads."""
    total = None
    for name in ("attn_mask", "key_padding_mask"):
        mask = given.get(name)
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask, -torch.inf)
        mask = mask.to(q.dtype)
        if name == "key_padding_mask":
            mask = mask[:, None, None]
        elif mask.ndim == 3:
            mask = mask.unflatten(0, (len(q), -1))
        total = mask if total is None else total + mask
    return total
