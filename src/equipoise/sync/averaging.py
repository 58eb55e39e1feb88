"""What the methods that average parameters at a round share: the weights, the optimizers' states, one all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..comm.fused_reduction import fused_cost, metadata_only, sum_in_order
from ..comm.ledger import mean_cost
from ..comm.piggyback import Piggyback, sum_with_piggyback
from ..core.context import Context
from ..core.shards import local
from ..core.vector import ModelSize
from ..wire.channel import SumChannel, sum_cost
from .base import Sync
from .shares import shares_of

WEIGHTS = ("size", "uniform", "samples")
WEIGHTS_HELP = "by share of the examples, all alike, or by samples since the last round"
STATES = ("local", "average", "reset")
STATES_HELP = "of the optimizer, at a round: left alone, averaged, or reset"


class Averaging:
    """x <- sum_j w_j x_j over workers, and what a round does to the optimizers' states (momentum, Adam's moments).

    Weights: "size" are the workers' shares of the examples, "samples" what each consumed since the last round,
    "uniform" 1/N. States: "local" leaves them alone, "average" averages them in the same message, "reset" clears them.
    """

    def __init__(self, context: Context, weights: str, state: str):
        self.context, self.weights, self.state = context, weights, state
        self.samples_at_last_round = 0  # examples that this worker had consumed then
        self.names: list[str] | None = None  # of the optimizer's state tensors that are as large as their parameter
        self.piggyback: Piggyback | None = None  # travels with the next average
        self.channel = context.wire.sums("average", models=True) if context.wire is not None else None
        self._progress: torch.Tensor | None = None  # of this worker in the round that ended

    def average(self, x: torch.Tensor, reference: torch.Tensor | None = None, start: int = 0) -> None:
        """In place. Counts one round.

        reference: the model with which all workers began the round, to which a wire takes differences; where a method
            keeps none, the last average. start: where x begins in the model, if it is only a part of it.
        """
        context = self.context
        context.clock.rounds += 1
        weight = self.weight()
        if self.channel is not None:
            self._average_progress(self.channel, x, weight, reference, start)
            return
        moments = self._moments() if self.state == "average" else []
        message = torch.cat([x, *(m.reshape(-1) for m in moments)]) if moments else x
        if weight != 1.0:
            message.mul_(weight)
        weights = sum_with_piggyback(
            context.comm, message, weight, "parameters", self.piggyback, gather_weights=self.weights == "samples"
        )
        self.divide(message, weights)
        if moments:
            x.copy_(message[: len(x)])
            _scatter(moments, message[len(x) :])
        if self.state == "reset" and context.optimizer is not None:
            context.optimizer.state.clear()

    def _average_progress(
        self, channel: SumChannel, x: torch.Tensor, weight: float, reference: torch.Tensor | None, start: int
    ) -> None:
        """x <- r + sum_j w_j C(x_j - r), with error feedback; r the reference."""
        begun = channel.reference_model() if reference is None else reference
        progress = x - begun
        self._progress = progress.clone() if channel.in_model else None
        total, (weights,) = channel.sum(progress.mul_(weight), [weight], start)
        torch.add(begun, total.div_(weights or 1.0).to(x.dtype), out=x)
        if reference is None:
            begun.copy_(x)
        if self.state == "reset" and self.context.optimizer is not None:
            self.context.optimizer.state.clear()

    @property
    def leaves_residuals(self) -> bool:
        """Does what a message leaves out stay in the worker's model?"""
        return self.channel is not None and self.channel.in_model

    def keep_unsent(self, x: torch.Tensor, progress: torch.Tensor | None = None) -> None:
        """x <- x + what this worker's message left out, if the wire leaves residuals in the models.

        Called at the end of a round, when all workers hold the same x. progress: of this worker in the round, where
        the sum overlapped with local steps.
        """
        own, self._progress = self._progress if progress is None else progress, None
        if self.channel is not None and own is not None:
            x.add_(self.channel.take_residual(own))

    def mean_shares(self) -> list[float]:
        """The weights of the mean model, those of a round at this moment; empty where all count alike. Collective."""
        if self.weights != "samples":
            return shares_of(self.context) if self.weights == "size" else []
        consumed = self.context.clock.samples - self.samples_at_last_round
        samples = [float(n) for n in self.context.comm.gather_objects(consumed)]
        total = sum_in_order(samples)
        return [n / total for n in samples] if total and len(set(samples)) > 1 else []

    def weight(self) -> float:
        """The weight of this worker in this round."""
        clock = self.context.clock
        samples = clock.samples + clock.batch
        consumed, self.samples_at_last_round = samples - self.samples_at_last_round, samples
        return {"size": self.context.worker.share, "uniform": 1.0, "samples": float(consumed)}[self.weights]

    def divide(self, total: torch.Tensor, weights: list[float]) -> None:
        """Turn the weighted sum into the mean; shares already sum to one."""
        if self.weights == "uniform":
            total.div_(self.context.size)
        elif self.weights == "samples" and sum_in_order(weights):
            total.div_(sum_in_order(weights))

    def _moments(self) -> list[torch.Tensor]:
        """The state tensors of all parameters, by name; zeros for a parameter that has had no step yet."""
        context = self.context
        if context.optimizer is None or context.flat is None:
            return []
        states = [(p, context.optimizer.state.get(p, {})) for p in context.flat.parameters.values()]
        if self.names is None:
            # A worker without examples has no state yet, but all must send messages of the same length.
            own = {
                k for p, state in states for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == p.shape
            }
            self.names = sorted(set().union(*context.comm.gather_objects(own)))
        pairs = [(p, state.get(name)) for name in self.names for p, state in states]
        return [torch.zeros_like(local(p)) if moment is None else local(moment) for p, moment in pairs]


@dataclass
class AveragesParameters(Sync):
    """A method whose round contains the average. Final here: what it hands on to `self.averaging`."""

    def start_averaging(self, weights: str, state: str) -> None:
        """Make `self.averaging`; for `init_state`."""
        self.averaging = Averaging(self.context, weights, state)

    @property
    def samples_at_last_round(self) -> int:
        return self.averaging.samples_at_last_round

    @samples_at_last_round.setter
    def samples_at_last_round(self, value: int) -> None:
        self.averaging.samples_at_last_round = value

    def carry(self, piggyback: Piggyback | None) -> None:
        self.averaging.piggyback = piggyback

    def mean_shares(self) -> list[float]:
        return self.averaging.mean_shares()

    def sent_with_model(self) -> dict[str, Any]:
        optimizer = self.context.optimizer
        if self.averaging.state != "average" or optimizer is None:
            return {}
        return {"moments": list(optimizer.state.values())}

    def takes_wires(self, size: int) -> tuple[str, str]:
        if getattr(self, "state", "") == "average":
            return "none", "state='average' sends the optimizer's moments, which are no differences"
        return "all", ""

    def average_cost(
        self, weights: str, model: ModelSize, rank: int, size: int, start: int = 0, stop: int | None = None
    ) -> tuple[int, int]:
        """Messages and bytes of one average of a part; the optimizer's state counts once it is known."""
        if model.wire is not None:
            return sum_cost(model, 1, rank, size, start, stop)
        elements, itemsize = (model.elements if stop is None else stop) - start, model.itemsize
        names = self.averaging.names if self.is_bound else None
        elements *= 1 + len(names or [])
        if weights == "samples":
            return fused_cost(elements, itemsize, rank, size, metadata_only([1.0]))
        return mean_cost(elements, itemsize, rank, size)


def _scatter(moments: list[torch.Tensor], values: torch.Tensor) -> None:
    start = 0
    for moment in moments:
        moment.copy_(values[start : start + moment.numel()].view(moment.shape))
        start += moment.numel()
