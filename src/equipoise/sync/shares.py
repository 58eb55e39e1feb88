"""The weights of workers that hold different numbers of examples.

Every example should count the same, so the objective is  sum_i pi_i f_i  with pi_i = n_i / n, worker i's share of the
examples. Methods that average models weigh the models: a round then conserves the weighted mean. Methods whose analysis
needs a symmetric W keep it and weigh gradients: (1/N) sum_i N pi_i g_i is the same sum.
"""

from __future__ import annotations

import torch

from ..core.context import Context
from ..core.errors import UserError

BY = ("size", "uniform")  # what the option `weights` of a method takes
HELP = "workers count by their share of the examples, or all alike"


def shares_of(context: Context, weights: str = "size") -> list[float]:
    """pi, by rank; empty where all count alike."""
    shares = [] if weights == "uniform" else parts_of(context)
    if shares and min(shares) <= 0.0:
        rank = shares.index(min(shares))
        raise UserError(f"worker {rank} has a share of {shares[rank]:g}: run without it, or pass weights='uniform'")
    return shares


def parts_of(context: Context) -> list[float]:
    """Each worker's part of the data, which may be nothing; empty where all are equal. Blocks that differ by one
    example, from rounding, count as equal.
    """
    worker = context.worker
    if not worker.shares:
        return []
    rounding = 1.0 / worker.total_examples if worker.total_examples else 0.0
    return [] if max(worker.shares) - min(worker.shares) <= rounding + 1e-9 else list(worker.shares)


def scale_of(context: Context, weights: str = "size") -> float:
    """N pi_i of this worker; 1 where all count alike."""
    shares = shares_of(context, weights)
    return context.size * shares[context.rank] if shares else 1.0


def weigh_gradient(context: Context, weights: str, g: torch.Tensor | None = None) -> None:
    """g <- N pi_i g, in place; without `g`, the gradients in the parameters."""
    scale = scale_of(context, weights)
    if scale == 1.0:
        return
    if g is not None:
        g.mul_(scale)
        return
    assert context.flat is not None
    gradients = [gradient for gradient in context.flat.gradients() if gradient is not None]
    if gradients:
        torch._foreach_mul_(gradients, scale)


def mean_of(context: Context, vector: torch.Tensor, shares: list[float]) -> torch.Tensor:
    """sum_i pi_i v_i over workers, in place; the plain mean where `shares` is empty."""
    return context.comm.sum(vector.mul_(shares[context.rank])) if shares else context.comm.mean(vector)
