"""The precision of vectors that many small terms are added to: at least float32, also where the model is bfloat16."""

from __future__ import annotations

import torch

ITEMSIZE = 4  # bytes of the narrowest element


def wide_zeros(like: torch.Tensor, elements: int | None = None) -> torch.Tensor:
    """As many zeros as `like` has elements, or `elements` of them."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.zeros(like.numel() if elements is None else elements, dtype=dtype, device=like.device)
