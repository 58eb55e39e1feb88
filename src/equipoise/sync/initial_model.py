"""Copies of the model with which all workers start."""

from __future__ import annotations

import torch


def copy_once(held: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """`held`, or a copy of the model where there is none yet.

    For `before_step`: in `init_state` it would be too early, because a model may be loaded between that and the first
    step.
    """
    return x.clone() if held is None else held
