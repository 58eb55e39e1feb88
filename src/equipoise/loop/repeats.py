"""Batches of examples that a worker has had already count for nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from .attach import attach
    from .sampler import Sampler


class Repeats:
    """Keep the gradient and the buffers of a step as they are while the loop is at such a batch.

    A step of nothing else leaves the buffers as the guard kept them. Where there are others before them, forward passes
    tell when the first one begins: a loader may be ahead of the loop, which calls its model equally often for every
    batch.
    """

    def __init__(self, loop: attach):
        self.loop = loop
        self.passes, self.epoch = 0, -1  # forward passes since the last step, in this epoch
        self.per_batch = 1
        self._kept: list[Any] = []  # hooks that keep gradients
        self._buffers: list[torch.Tensor] | None = None

    def watch(self) -> Callable[[], None]:
        """Look at the passes of the loop, where a step may have such batches beside others; what undoes it."""
        sampler = self.loop.sampler
        if sampler is None or self.loop.accumulate == 1:
            return lambda: None
        hook = self.loop.model.register_forward_pre_hook(lambda model, inputs: self._begins(model, sampler))

        def release() -> None:
            self.forget()
            hook.remove()

        return release

    def _begins(self, model: nn.Module, sampler: Sampler) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        if self.epoch != sampler.epoch:  # the loop left the batches behind the last step of an epoch
            self.forget()
            self.epoch = sampler.epoch
        own, drawn, batches = sampler.own_batches(self.loop.accumulate)
        if self._buffers is None and drawn > own > 0 and self.passes // self.per_batch >= own:
            self._keep(batches / own)
        self.passes += 1

    @torch.no_grad()
    def _keep(self, times: float) -> None:
        # The loop means over all batches of the step, of which these are the only ones.
        for p in self.loop.flat.parameters.values():
            kept = None if p.grad is None else p.grad.mul_(times).clone()
            hook = p.register_post_accumulate_grad_hook(functools.partial(_put_back, kept))  # type: ignore[no-untyped-call]
            self._kept.append(hook)
        self._buffers = [buffer.clone() for buffer in self.loop.model.buffers()]

    def end_step(self) -> None:
        batches = 0 if self.loop.sampler is None else min(self.loop.accumulate, self.loop.sampler.drawn)
        self.per_batch = max(1, self.passes // max(1, batches))
        self.forget()

    def use(self, sampler: Sampler) -> tuple[int, int, np.ndarray | None]:
        """`Sampler.use`. A step of nothing but such batches has not touched the buffers."""
        batch, largest, places = sampler.use(self.loop.accumulate)
        if not batch:
            self.loop.step.guard.restore_buffers()
        return batch, largest, places

    def forget(self) -> None:
        """What comes next belongs to another step."""
        for buffer, before in zip(self.loop.model.buffers(), self._buffers or (), strict=False):
            buffer.copy_(before)
        for hook in self._kept:
            hook.remove()
        self._kept, self._buffers, self.passes = [], None, 0


@torch.no_grad()
def _put_back(kept: torch.Tensor | None, p: torch.Tensor) -> None:
    if kept is None:
        p.grad = None
    elif p.grad is not None:
        p.grad.copy_(kept)
