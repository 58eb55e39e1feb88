"""The largest eigenvalue and the trace of the Hessian, from Hessian-vector products only."""

from __future__ import annotations

import math

import numpy as np
import torch

from .surface import Estimate, Surface


def largest_eigenvalue(surface: Surface, *, most: int = 40, tolerance: float = 1e-3, seed: int = 0) -> Estimate:
    """The largest eigenvalue of the Hessian, by Lanczos' method.

        H q_k = b_{k-1} q_{k-1} + a_k q_k + b_k q_{k+1};   the largest eigenvalue t of the tridiagonal (a, b), with
        eigenvector s, is within |b_k s_k| of an eigenvalue of H

    The error is that residual. The iteration ends when the residual is below `tolerance` times the value, or after
    `most` products with H. Every vector is orthogonalised twice against all previous ones, so that rounding cannot
    create spurious copies of the largest eigenvalue; that stores up to `most` vectors in double precision. The value
    approaches the largest eigenvalue from below.
    """
    most = min(most, surface.size)
    basis = torch.empty(most, surface.size, dtype=torch.float64)
    following = torch.randn(surface.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    norm, value, residual = float(following.norm()), 0.0, math.inf
    for k in range(most):
        torch.div(following, norm, out=basis[k])
        w = surface.times_hessian(basis[k])
        diagonal.append(float(w @ basis[k]))
        for _ in range(2):
            w -= basis[: k + 1].T @ (basis[: k + 1] @ w)
        norm = float(w.norm())
        matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
        values, vectors = np.linalg.eigh(matrix)
        value, residual = float(values[-1]), norm * abs(float(vectors[-1, -1]))
        if residual <= tolerance * abs(value) or norm <= 1e-12 * max(1.0, abs(value)):
            break
        off_diagonal.append(norm)
        following = w
    return Estimate(value, residual)


def trace(surface: Surface, *, probes: int = 30, seed: int = 0) -> Estimate:
    """The trace of the Hessian, by Hutchinson's method: the mean of v . H v over random sign vectors v.

    The error is the standard error of that mean.
    """
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(probes):
        v = torch.randint(0, 2, (surface.size,), generator=generator, dtype=torch.float64) * 2 - 1
        samples.append(float(v @ surface.times_hessian(v)))
    error = float(np.std(samples, ddof=1)) / math.sqrt(probes) if probes > 1 else math.inf
    return Estimate(float(np.mean(samples)), error)
