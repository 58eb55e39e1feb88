"""The Hessian of a loss without ever writing it down: its largest eigenvalue and its trace."""

from __future__ import annotations

import math

import numpy as np
import torch

from .surface import Estimate, Surface


def largest_eigenvalue(surface: Surface, *, most: int = 40, tolerance: float = 1e-3, seed: int = 0) -> Estimate:
    """The largest eigenvalue of the Hessian, by Lanczos' method.

        H q_k = b_{k-1} q_{k-1} + a_k q_k + b_k q_{k+1};   the largest eigenvalue t of the tridiagonal (a, b), with
        eigenvector s, is within |b_k s_k| of an eigenvalue of H

    That residual is the error given; it ends when the residual is below `tolerance` times the value, or after `most`
    products with H. Every vector is made orthogonal to all before it, twice, so that rounding cannot make copies of the
    largest eigenvalue; that stores up to `most` vectors in double precision. It approaches the largest from below.
    """
    most = min(most, surface.size)
    basis = torch.empty(most, surface.size, dtype=torch.float64)
    following = torch.randn(surface.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    diagonal: list[float] = []
    beside: list[float] = []
    norm, value, residual = float(following.norm()), 0.0, math.inf
    for k in range(most):
        torch.div(following, norm, out=basis[k])
        w = surface.times_hessian(basis[k])
        diagonal.append(float(w @ basis[k]))
        for _ in range(2):
            w -= basis[: k + 1].T @ (basis[: k + 1] @ w)
        norm = float(w.norm())
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        values, vectors = np.linalg.eigh(matrix)
        value, residual = float(values[-1]), norm * abs(float(vectors[-1, -1]))
        if residual <= tolerance * abs(value) or norm <= 1e-12 * max(1.0, abs(value)):
            break
        beside.append(norm)
        following = w
    return Estimate(value, residual)


def trace(surface: Surface, *, probes: int = 30, seed: int = 0) -> Estimate:
    """The trace of the Hessian, by Hutchinson's method: the mean of v . H v over random signs v, and its standard error."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(probes):
        v = torch.randint(0, 2, (surface.size,), generator=generator, dtype=torch.float64) * 2 - 1
        found.append(float(v @ surface.times_hessian(v)))
    error = float(np.std(found, ddof=1)) / math.sqrt(probes) if probes > 1 else math.inf
    return Estimate(float(np.mean(found)), error)
