from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..core.errors import UserError
from ..core.method import option
from .base import SAMPLE, GradientView, Signal
from .factors_of_layer import Outer, Part
from .hooks import Call, calls_of, refuse_batch_norm
from .layers import Layers, ways_of
from .projection import Sketch
from .rows import Rows
from .rules import Rule, linear, rule_of


@dataclass
class LastLayer(Signal):
    """The gradient of the last linear layer alone: exact for it, blind to the rest, and next to free.

    A layer that is applied to every word is sketched (`Projection`), because its exact products would not be free.
    """

    width: int = option(
        16, help="numbers that each factor is projected to, where the layer is applied to every word", least=1
    )

    def init_state(self) -> None:
        self.last: nn.Module | None = None
        self.passes: list[Part] = []
        self.sketch = Sketch(self.context.worker.seed, self.width)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        found = self.last is not None
        if not found:
            refuse_batch_norm(model)
        layers = [self.last] if self.last is not None else [m for m in model.modules() if rule_of(m) is linear]
        with calls_of(layers) as calls:
            yield
        calls = [call for call in calls if len(call.a) == examples == call.shape[0]]
        if not calls:
            raise UserError("the model has no linear layer with the examples first: use --order.signal exact or batch")
        self.last = calls[-1].module
        self.passes.append(_part(calls[-1], linear))

    def forget(self) -> None:
        self.passes = []

    @torch.no_grad()
    def view(self) -> GradientView:
        parts, self.passes = self.passes, []
        count = sum(len(part.tensors()["a"]) for part in parts)
        part = parts[0] if len(parts) == 1 else _stacked(parts)
        assert isinstance(part, Outer)
        if part.a.shape[1] > 1:
            return Rows(self.sketch(0, part) * count, [1] * count)
        assert part.weight is not None
        ways = ways_of(*part.shape)
        if self.context.size == 1 and ways["made"] < ways["ghost"]:  # to others the factors are less to send
            return Rows(part.made().rows * count, [1] * count)
        size = max(last for _, last in part.places())
        view = Layers([part], part.a.new_full((count,), float(count)), size)
        columns = max(1, part.a.shape[2] * part.b.shape[2] // SAMPLE)
        view.sample = torch.mm(part.b[:, 0].T, part.a[:, 0, ::columns]).flatten() * count
        return view


def _part(call: Call, rule: Rule) -> Part:
    layer = call.module
    assert isinstance(layer, nn.Linear)
    weights = layer.weight.numel()
    bias = (weights, weights + layer.bias.numel()) if layer.bias is not None else None
    return call.part(rule, ((0, weights), bias), torch.float32)


def _stacked(parts: list[Part]) -> Part:
    tensors = {name: torch.cat([part.tensors()[name] for part in parts]) for name in ("a", "b")}
    return parts[0].with_tensors(tensors)
