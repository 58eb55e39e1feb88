"""Accelerate: `prepare` without DistributedDataParallel, and `attach` for what it returns."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ..core.errors import UserError
from ..core.extras import require
from ..loop.attach import attach as attach_loop
from ..loop.sampler import Sampler
from .worker_files import load_workers, save_workers
from .worker_state import refuse_unknown

require("accelerate", "accelerate", "the adapter for Accelerate")


def prepare(accelerator: Any, *objects: Any) -> Any:
    """`accelerator.prepare(...)` for workers that train together by `attach`.

    Models get their device and mixed precision, and no wrapper that averages gradients. Loaders over an `eq.Sampler`
    keep its batches, which are this worker's own; all others are divided as ever.
    """
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise UserError(f"{kind} divides the model among the workers, and a sync needs all of it: leave it out")
    accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)
    try:
        prepared = accelerator.prepare(*objects)
    finally:
        del accelerator.prepare_model
    for thing in prepared if len(objects) > 1 else [prepared]:
        divided = thing.batch_sampler if isinstance(thing, DataLoader) else None
        if isinstance(getattr(divided, "batch_sampler", None), Sampler):
            divided.num_processes, divided.process_index = 1, 0  # type: ignore[union-attr]
    return prepared


@contextlib.contextmanager
def attach(
    accelerator: Any, model: nn.Module, optimizer: Any, *, final: str = "mean", **choices: Any
) -> Iterator[attach_loop]:
    """`eq.attach` for a model and an optimizer that `prepare` has returned.

        model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
        with attach(accelerator, model, optimizer, period=8, sampler=sampler):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss(model(x), y))
                    optimizer.step()
                    optimizer.zero_grad()

    Gradient accumulation and the scaler are those of the accelerator. Inside the block `accelerator.save_state` writes
    every worker's own state too, beside the model `final`; after `accelerator.load_state` the loop goes on to the same
    bits. When the block has ended all workers hold the model `final`: "mean" or "centre".

    choices: the other arguments of `eq.attach`.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UserError(
            "accelerator.prepare has wrapped the model in DistributedDataParallel, which averages gradients at every "
            "backward pass, whatever the sync: use prepare of equipoise.integrations.accelerate"
        )
    inner = getattr(optimizer, "optimizer", optimizer)
    known = {"scaler": accelerator.scaler, "accumulate": accelerator.gradient_accumulation_steps}
    refuse_unknown(choices, (*known, "final"), "attach")
    together = attach_loop(model, inner, final=final, **known, **choices)
    with together, _WorkerStates(accelerator, together).registered():
        yield together


class _WorkerStates:
    """The part of `accelerator.save_state` and `load_state` that differs from worker to worker.

    Accelerate loads its own parts first, of worker 0 for all, and objects like this one last.
    """

    def __init__(self, accelerator: Any, together: attach_loop):
        self.accelerator, self.together = accelerator, together
        self._folder = Path()

    @contextlib.contextmanager
    def registered(self) -> Iterator[None]:
        accelerator = self.accelerator
        handles = [
            accelerator.register_save_state_pre_hook(self._saving),
            accelerator.register_load_state_pre_hook(self._loading),
        ]
        accelerator.register_for_checkpointing(self)
        accelerator.get_state_dict = functools.partial(self._state_of, accelerator.get_state_dict)
        try:
            yield
        finally:
            del accelerator.get_state_dict
            accelerator._custom_objects.remove(self)
            for handle in handles:
                handle.remove()

    def _saving(self, models: list[nn.Module], weights: list[dict[str, torch.Tensor]], folder: str) -> None:
        together = self.together
        save_workers(together, Path(folder))
        place = next(i for i, model in enumerate(models) if model is together.model)
        weights[place] = together.model_state(together.final or "mean")

    def _loading(self, models: list[nn.Module], folder: str) -> None:
        self._folder = Path(folder)
        models[:] = [model for model in models if model is not self.together.model]  # what Accelerate need not load

    def _state_of(self, state_of: Callable[..., Any], model: nn.Module, unwrap: bool = True) -> Any:
        """For `save_state`, which lets `_saving` replace it; nobody else should save one worker's model."""
        if model is self.together.model and unwrap:
            raise UserError(
                "inside attach each worker has a model of its own: save together.model_state() of all workers, or "
                "call accelerator.save_model when the block has ended"
            )
        return state_of(model, unwrap=unwrap)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_workers(self.together, self._folder)
