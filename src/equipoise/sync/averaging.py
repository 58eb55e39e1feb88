"""What the methods that average parameters at a round share: the weights, the optimizers' states, one collective."""

from __future__ import annotations

import torch

from ..comm.fused_reduction import fused_cost, metadata_only, sum_in_order
from ..comm.ledger import mean_cost
from ..comm.piggyback import Piggyback, sum_with_piggyback
from ..core.context import Context
from .shares import shares_of

WEIGHTS = ("size", "uniform", "samples")
STATES = ("local", "average", "reset")


class Averaging:
    """x <- sum_j w_j x_j over workers, and what becomes of the optimizers' states (momentum, Adam's moments).

    Weights: "size" are the workers' shares of the examples, "samples" what each consumed since the last round, "uniform"
    1/N. States: "local" leaves them alone, "average" takes their means in the same message, "reset" begins afresh.
    """

    def __init__(self, context: Context, weights: str, state: str):
        self.context, self.weights, self.state = context, weights, state
        self.since = 0  # samples of this worker before the last round
        self.names: list[str] | None = None  # of the optimizer's state tensors that are as large as their parameter
        self.piggyback: Piggyback | None = None  # what the next average takes along

    def average(self, x: torch.Tensor) -> None:
        """In place. Counts one round."""
        context = self.context
        context.clock.rounds += 1
        weight = self.weight()
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
            _put(moments, message[len(x) :])
        if self.state == "reset" and context.optimizer is not None:
            context.optimizer.state.clear()

    def mean_shares(self) -> list[float]:
        """The weights of the mean model; empty where all count alike."""
        return shares_of(self.context) if self.weights == "size" else []

    def weight(self) -> float:
        """Of this worker, in this round."""
        clock = self.context.clock
        done = clock.samples + clock.batch
        taken, self.since = done - self.since, done
        return {"size": self.context.worker.share, "uniform": 1.0, "samples": float(taken)}[self.weights]

    def divide(self, total: torch.Tensor, weights: list[float]) -> None:
        """From the sum of vectors times their weights to their mean; shares add up to one already."""
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
            # A worker without examples has no state yet: all must send as much.
            own = {
                k for p, state in states for k, v in state.items() if isinstance(v, torch.Tensor) and v.shape == p.shape
            }
            self.names = sorted(set().union(*context.comm.gather_objects(own)))
        found = [state.get(name) for name in self.names for _, state in states]
        likes = [p for _ in self.names for p, _ in states]
        return [torch.zeros_like(p) if v is None else v for v, p in zip(found, likes, strict=True)]


def _put(moments: list[torch.Tensor], values: torch.Tensor) -> None:
    start = 0
    for moment in moments:
        moment.copy_(values[start : start + moment.numel()].view(moment.shape))
        start += moment.numel()


def averaging_cost(
    averaging: Averaging | None, weights: str, elements: int, itemsize: int, rank: int, size: int
) -> tuple[int, int]:
    """Messages and bytes of one average; an optimizer's state counts once it is known."""
    names = averaging.names if averaging is not None else None
    elements *= 1 + len(names or [])
    if weights == "samples":
        return fused_cost(elements, itemsize, rank, size, metadata_only([1.0]))
    return mean_cost(elements, itemsize, rank, size)
