"""Batches of examples that a worker has had already, in a step that has others: they count for nothing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .attach import attach
    from .sampler import Sampler


class Repeats:
    """Keep the gradient and the buffers of a step as they are while the loop is at such a batch.

    A loader may be ahead of the loop. Where the loop calls its model equally often for every batch, the forward passes
    since the last step tell which one it is at.
    """

    def __init__(self, loop: attach, sampler: Sampler):
        self.loop, self.sampler = loop, sampler
        self.passes, self.epoch = 0, sampler.epoch  # forward passes since the last step
        self.per_batch = 1
        self._kept: list[Any] = []  # hooks that keep gradients
        self._buffers: list[torch.Tensor] | None = None
        self._hook = loop.model.register_forward_pre_hook(self._begins)

    def _begins(self, model: Any, inputs: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        if self.epoch != self.sampler.epoch:  # the loop left the batches behind the last step of an epoch
            self.forget()
        own, drawn, batches = self.sampler.own_batches(self.loop.accumulate)
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
        batches = min(self.loop.accumulate, self.sampler.drawn)
        self.per_batch = max(1, self.passes // max(1, batches))
        self.forget()

    def forget(self) -> None:
        """What comes next belongs to another step."""
        for buffer, before in zip(self.loop.model.buffers(), self._buffers or (), strict=False):
            buffer.copy_(before)
        for hook in self._kept:
            hook.remove()
        self._kept, self._buffers = [], None
        self.passes, self.epoch = 0, self.sampler.epoch

    def release(self) -> None:
        self.forget()
        self._hook.remove()


def end_step_of(repeats: Repeats | None) -> None:
    if repeats is not None:
        repeats.end_step()


def release(repeats: Repeats | None) -> None:
    if repeats is not None:
        repeats.release()


def before_repeats(loop: attach) -> tuple[Repeats | None, list[torch.Tensor]]:
    """What a worker needs that will run dry: buffers to put back after a pass that counts for nothing, and where a step
    has several batches, what keeps the gradient of its own.
    """
    sampler, repeats = loop.sampler, loop.repeats
    if sampler is None or not sampler.runs_dry:
        return repeats, []
    if loop.accumulate > 1 and repeats is None:
        repeats = Repeats(loop, sampler)
    return repeats, [buffer.clone() for buffer in loop.model.buffers()]


@torch.no_grad()
def _put_back(kept: torch.Tensor | None, p: torch.Tensor) -> None:
    if kept is None:
        p.grad = None
    elif p.grad is not None:
        p.grad.copy_(kept)
