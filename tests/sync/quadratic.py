"""Heterogeneous quadratics with full gradients: the problem on which exact methods are exact and biased ones show it.

f_i(x) = 1/2 (x - c_i)^T A_i (x - c_i), n workers, d = 5, float64 unless said. The optimum of the mean is known in
closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.loop.attach import attach


@dataclass
class Problem:
    matrices: np.ndarray  # (n, d, d)
    centres: np.ndarray  # (n, d)

    @classmethod
    def make(cls, workers: int, dim: int = 5, seed: int = 0) -> Problem:
        rng = np.random.default_rng(seed)
        raw = rng.standard_normal((workers, dim, dim))
        matrices = np.einsum("nij,nkj->nik", raw, raw) / dim + 0.5 * np.eye(dim)
        return cls(matrices, rng.standard_normal((workers, dim)))

    @property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of any worker's matrix."""
        return float(max(np.linalg.eigvalsh(a)[-1] for a in self.matrices))

    @property
    def optimum(self) -> np.ndarray:
        right = np.einsum("nij,nj->i", self.matrices, self.centres)
        return np.linalg.solve(self.matrices.sum(0), right)


def solve(
    problem: Problem,
    sync: Any,
    *,
    steps: int,
    lr: float,
    period: int = 1,
    wire: Any = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    virtual: bool = True,
    dtype: torch.dtype = torch.float64,
    report_loss: bool = True,
    on_step: Callable[[int, Any, np.ndarray], None] | None = None,
    **options: Any,
) -> np.ndarray:
    """The workers' points (n, d) after `steps` steps from zero. `on_step(step, attached, x)` is called after each step.

    `report_loss` sets `attached.loss` at each step, for methods that follow the training loss.
    """
    n, dim = problem.centres.shape

    def loop(comm: Comm) -> np.ndarray:
        a = torch.from_numpy(problem.matrices[comm.rank]).to(dtype)
        c = torch.from_numpy(problem.centres[comm.rank]).to(dtype)
        model = nn.Linear(dim, 1, bias=False, dtype=dtype)
        nn.init.zeros_(model.weight)
        own = optimizer(model.parameters(), lr=lr, **options)
        with attach(model, own, sync=sync, period=period, wire=wire) as together:
            for step in range(steps):
                own.zero_grad()
                away = model.weight[0] - c
                value = 0.5 * away @ a @ away
                value.backward()
                if report_loss:
                    together.loss = value.item()
                own.step()
                if on_step is not None:
                    on_step(step, together, model.weight.detach().double().numpy()[0].copy())
        return model.weight.detach().double().numpy()[0].copy()

    return np.stack(eq.spawn(loop, n, virtual=virtual, deterministic=True))


def error(problem: Problem, points: np.ndarray) -> float:
    """Largest distance of a worker from the optimum."""
    return float(np.abs(points - problem.optimum).max())
