"""The proximal term of LSGD, MGRAWA and LGRAWA, which acts between rounds."""

from __future__ import annotations

import torch


def proximal_step(x: torch.Tensor, centre: torch.Tensor, prox: float, steps_per_round: int) -> None:
    """x <- x + prox / H (centre - x), in place: the part of one step when `prox` is spread over H steps.

    Does nothing before the first round (H = 0), when the centre is still the common initial model.
    """
    if prox and steps_per_round:
        x.lerp_(centre, prox / steps_per_round)
