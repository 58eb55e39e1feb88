"""Mixed precision in float16: all workers skip a step if one of them overflowed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from ..comm.base import Comm
from ..core.device import numbers


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
            if any(numbers(*agreed(state["found_inf_per_device"], comm))):
                # A fused optimizer would be called all the same: it skips by itself, but its hooks run.
                state["stage"] = OptState.STEPPED
                skipped()
                return None
        return original(stepped, *args, **kwargs)

    scaler.step = step
    return lambda: delattr(scaler, "step")


def agreed(flags: dict[torch.device, torch.Tensor], comm: Comm) -> list[torch.Tensor]:
    """The flags of all devices, which now say whether any worker has met an overflow."""
    with comm.uncounted():
        for flag in flags.values():
            flag.copy_(comm.sum(flag.clone()).clamp(max=1.0))
    return list(flags.values())


class LossScale:
    """The GradScaler of `eq.train`: gradients in float16 are computed of a loss that is multiplied by a large number.

    It grows while nothing overflows. Where a gradient does, the batch counts for nothing on all workers, and the
    number is halved: it is the same on all of them. Workers that do not move in lockstep decide each by itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, comm: Comm, device: torch.device, *, lockstep: bool):
        self.optimizer, self.comm, self.lockstep = optimizer, comm, lockstep
        self.scaler = torch.amp.GradScaler(device.type)
        self.scaler._lazy_init_scale_growth_tracker(device)  # a first batch may be empty

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, like: torch.Tensor) -> torch.Tensor:
        """Give the gradients their true size; not zero where one of any worker has overflowed.

        Workers without examples take part in the decision.
        """
        self.scaler.unscale_(self.optimizer)
        flags = self.scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
        if not flags:  # no gradients
            flags[like.device] = torch.zeros(1, device=like.device)
        [flag] = agreed(flags, self.comm) if self.lockstep else flags.values()
        return flag.squeeze()

    def update(self) -> None:
        """The step is over."""
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state)


def stepping_scaler() -> Any:
    """The enabled GradScaler that has called this optimizer step, if one has."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.amp.GradScaler) and owner.is_enabled():
            return owner
        frame = frame.f_back
    return None
