"""Mixed precision in float16: all workers skip a step if one of them overflowed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from ..comm.base import Comm


def agree_on_overflow(
    scaler: Any, optimizer: torch.optim.Optimizer, comm: Comm, skipped: Callable[[], None]
) -> Callable[[], None]:
    """Let every worker learn of an overflow on any before the scaler decides whether to step.

    Returns a function that undoes it. `skipped` is called where no step is taken, so that no hook runs.
    """
    original = scaler.step

    def step(stepped: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if stepped is optimizer and scaler.is_enabled():
            state = scaler._per_optimizer_states[id(stepped)]
            if not state["found_inf_per_device"]:
                scaler.unscale_(stepped)
            with comm.uncounted():
                for flag in state["found_inf_per_device"].values():
                    flag.copy_(comm.sum(flag.clone()).clamp(max=1.0))
            if any(flag.item() for flag in state["found_inf_per_device"].values()):
                # A fused optimizer would be called all the same: it skips by itself, but its hooks run.
                state["stage"] = OptState.STEPPED
                skipped()
                return None
        return original(stepped, *args, **kwargs)

    scaler.step = step
    return lambda: delattr(scaler, "step")


def stepping_scaler() -> Any:
    """The enabled GradScaler that has called this optimizer step, if one has."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.amp.GradScaler) and owner.is_enabled():
            return owner
        frame = frame.f_back
    return None
