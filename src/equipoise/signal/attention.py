"""The parts of `nn.MultiheadAttention`: the maps to queries, keys and values, and the map of what was attended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .factors_of_layer import Outer, Place

_NAMES = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")


def attention(
    module: nn.MultiheadAttention,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    b: list[torch.Tensor | None],
    place: Callable[[Any], Place | None],
    dtype: torch.dtype,
) -> list[Outer]:
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    inputs = [given[name] for name in _NAMES[:3]]
    masked = module.dropout > 0 and module.training
    unusual = module.bias_k is not None or module.add_zero_attn or any(one is not None for one in b[1:])
    if masked or unusual or inputs[0].ndim != 3:
        return []
    of_itself = inputs[0] is inputs[1] is inputs[2]
    inputs = [(x if module.batch_first else x.transpose(0, 1)).detach().to(dtype) for x in inputs]
    width, heads = module.embed_dim, module.num_heads
    together = module.in_proj_weight is not None
    whole = None if together else [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    weights = module.in_proj_weight.chunk(3) if whole is None else whole
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
    found = torch.autograd.grad(attended, zeros, y @ module.out_proj.weight.detach().to(dtype))
    places = _thirds(place(module.in_proj_weight)) if together else [place(w) for w in weights]
    biases = _thirds(place(module.in_proj_bias))
    out = Outer(place(module.out_proj.weight), place(module.out_proj.bias), attended.detach(), y)
    if of_itself and together:
        return [Outer(place(module.in_proj_weight), place(module.in_proj_bias), inputs[0], torch.cat(found, 2)), out]
    return [*(Outer(*row) for row in zip(places, biases, inputs, found, strict=True)), out]


def _thirds(place: Place | None) -> list[Place | None]:
    if place is None:
        return [None] * 3
    third = (place[1] - place[0]) // 3
    return [(place[0] + i * third, place[0] + (i + 1) * third) for i in range(3)]


def _mask(given: dict[str, Any], q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """What is added to the scores, for all examples and heads."""
    found = None
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
        found = mask if found is None else found + mask
    return found
