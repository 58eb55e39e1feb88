"""What a worker can do to its gradient before any optimizer sees it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.device import on_host, widest


def sharpness_aware(model: nn.Module, rho: float, gradient: Callable[[], object]) -> None:
    """SAM: replace the gradient at x by the one at the worst point nearby, to first order.

        e = rho g(x) / |g(x)|;   g <- g(x + e)

    The gradient at x must be in place; `gradient()` takes it again on the same batch. x is put back to the bit and
    BatchNorm keeps the statistics of the first pass. A step costs two. Any optimizer and any sync go on from there:
    on many workers each one climbs along its own gradient (the m-sharpness of the paper), so nothing more is sent.
    Reference: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.
    """
    parameters: list[torch.Tensor] = [p for p in model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    lengths = [n.to(widest(n.device)) for n in torch._foreach_norm(gradients)]
    norm = on_host(torch.stack(lengths)).norm().item()
    if not 0.0 < norm < float("inf"):
        return  # nowhere to climb; a gradient that is not finite is the loop's to refuse
    with torch.no_grad():
        saved = torch._foreach_mul(parameters, 1.0)
        torch._foreach_add_(parameters, gradients, alpha=rho / norm)
    norms = [(m, m.momentum) for m in model.modules() if isinstance(m, _BatchNorm)]
    counts = [m.num_batches_tracked.clone() if m.num_batches_tracked is not None else None for m, _ in norms]
    try:
        for module, _ in norms:
            module.momentum = 0.0
        gradient()
    finally:
        with torch.no_grad():
            torch._foreach_copy_(parameters, saved)
            for (module, momentum), count in zip(norms, counts, strict=True):
                module.momentum = momentum
                if module.num_batches_tracked is not None and count is not None:
                    module.num_batches_tracked.copy_(count)
