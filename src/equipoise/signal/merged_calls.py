"""Several calls of one layer in one pass are one call with as many more tokens: gradients of its calls add up."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .convolution import ConvolutionFactors
from .layer_factors import EmbeddingFactors, ExampleGradients, LayerFactors, LinearFactors, Span


def merged_calls(calls: Iterable[LayerFactors]) -> list[LayerFactors]:
    """The factors of one module, those of the same parameters joined."""
    same: dict[tuple[Span | None, Span | None], list[LayerFactors]] = {}
    for factors in calls:
        same.setdefault((factors.weight, factors.bias), []).append(factors)
    return [several[0] if len(several) == 1 else _merged(several) for several in same.values()]


def _merged(calls: list[LayerFactors]) -> LayerFactors:
    if isinstance(calls[0], ConvolutionFactors):
        calls = [c.materialize() if c.groups > 1 else c.linear() for c in calls if isinstance(c, ConvolutionFactors)]
    if isinstance(calls[0], ExampleGradients):
        rows = [factors.rows for factors in calls if isinstance(factors, ExampleGradients)]
        return calls[0].with_tensors({"rows": torch.stack(rows).sum(0)})
    assert isinstance(calls[0], (LinearFactors, EmbeddingFactors))
    tensors = [factors.tensors() for factors in calls]
    return calls[0].with_tensors({name: torch.cat([each[name] for each in tensors], 1) for name in tensors[0]})
