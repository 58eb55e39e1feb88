from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core.errors import UserError
from ..core.method import option
from .attribution import without_examples
from .base import SAMPLE, GradientView, Signal
from .factor_view import FactorView, strategy_costs
from .hooks import LayerCall, on_gradient, refuse_batch_norm
from .layer_factors import LinearFactors, Span
from .layer_rules import linear, rule_of
from .layer_sketch import LayerSketch, SketchedRows, joined
from .model_calls import model_calls
from .rows import Rows

_NOT_FIRST = "the model has no linear layer with the examples first: use --order.signal exact or batch"


@dataclass
class LastLayer(Signal):
    """The gradient of the last linear layer alone: exact for it, blind to the other layers, and nearly free.

    A layer that is applied to every token is sketched, because its exact products would not be free; so is any one that
    is `sketched`, for vectors that are kept. The sketch of a layer `y = W a + c` is

        sum_t d_t (1, P a_t)',   d = the smaller of dL/dy and dL/da = W' dL/dy

    Backward computes both, so nothing of the size of a vocabulary is touched. With `dL/da` it is the gradient of a
    linear map on the layer's input. P projects to `width` numbers.
    """

    width: int = option(8, help="numbers that the input is projected to, where the layer is sketched", least=1)

    sketched: bool = option(False, help="a sketch of the layer in any case")

    def init_state(self) -> None:
        self.watch: LayerWatch | None = None  # of the last layer, once it is known
        self.passes: list[LayerCall] = []
        self.sketch = LayerSketch(self.context.worker.seed, self.width)

    def watching(self, model: nn.Module, examples: int) -> contextlib.AbstractContextManager[None]:
        if self.watch is None:
            return self._first(model, examples)
        self.watch.examples = examples
        return self.watch

    @contextlib.contextmanager
    def _first(self, model: nn.Module, examples: int) -> Iterator[None]:
        refuse_batch_norm(model)
        watch = LayerWatch(self, [module for module in model.modules() if rule_of(module) is linear], examples)
        with watch:
            with model_calls(model, examples) as calls:
                yield
            seen = list(watch.calls)
            turned = without_examples(model, calls, watch.modules)
            watch.calls = [(call, source) for call, source in seen if call.module not in turned]

    def forget(self) -> None:
        self.passes = []

    def view(self) -> GradientView:
        passes, self.passes = self.passes, []  # of tensors without a graph
        if self.sketched or passes[0].a.ndim > 2:
            gradients = [call.b for call in passes if call.b is not None]
            return SketchedRows(self.sketch, joined([call.a for call in passes]), joined(gradients))
        count = sum(len(call.a) for call in passes)
        factors = _factors(passes[0]) if len(passes) == 1 else _stacked([_factors(call) for call in passes])
        costs = strategy_costs(*factors.shape)
        if self.context.size == 1 and costs["materialized"] < costs["ghost"]:  # with more workers, factors are shorter
            return Rows(factors.materialize().rows * count, [1] * count)
        size = max(span.stop for span in factors.spans())
        view = FactorView([factors], factors.a.new_full((count,), float(count)), size)
        columns = max(1, factors.a.shape[2] * factors.b.shape[2] // SAMPLE)
        view.sample = torch.mm(factors.b[:, 0].T, factors.a[:, 0, ::columns]).flatten() * count
        return view


class LayerWatch:
    """Around one pass: the input of the last of some linear layers, and the gradient of its smaller side.

    It is there in every step of a learned epoch, where 0.1 ms would be half of a short step. So it is no generator, and
    stands in for the layer's `forward`: torch calls a module that has hooks in a slower way.
    """

    def __init__(self, signal: LastLayer, modules: list[nn.Module], examples: int):
        self.signal, self.examples = signal, examples
        self.calls: list[tuple[LayerCall, torch.Tensor | None]] = []  # and in whose `grad` backward leaves its b
        self.modules = modules
        self.replaced: list[Any] = []  # by module: its own `forward`, where it is not the class's

    def __enter__(self) -> None:
        self.replaced = [module.__dict__.get("forward") for module in self.modules]
        for module in self.modules:
            module.__dict__["forward"] = partial(self._forward, module, module.forward)

    def _forward(self, module: nn.Module, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = plain(*args, **kwargs)
        # Neither an evaluation nor something else than examples.
        if args and output.requires_grad and (a := args[0]).shape[0] == self.examples == output.shape[0]:
            computed = a.requires_grad
            by_input = computed and (self.signal.sketched or a.ndim > 2) and a.shape[-1] < output.shape[-1]
            # What is not computed in this pass may be a buffer for the next one's examples.
            call = LayerCall(module, a.detach() if computed else a.clone(), (a if by_input else output).shape)
            if by_input and not a.is_leaf:
                # A third of the time of a hook in Python. Not for the output: what changes it in place would count.
                a.retain_grad()
                self.calls.append((call, a))
            else:
                on_gradient(a if by_input else output, call.keep)
                self.calls.append((call, None))
        return output

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for module, own in zip(self.modules, self.replaced, strict=True):
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own
        calls, self.calls = self.calls, []
        if kind is not None:
            return
        if not calls:
            raise UserError(_NOT_FIRST)
        for last, source in reversed(calls):
            if source is not None:
                last.b = source.grad
            if last.b is not None:  # a checkpointed block is computed again in backward: those calls get no gradient
                break
        else:
            last = calls[-1][0]
            last.b = last.a.new_zeros(last.shape)
        self.signal.passes.append(last)
        if self.signal.watch is None:
            self.signal.watch = LayerWatch(self.signal, [last.module], self.examples)


def _factors(call: LayerCall) -> LinearFactors:
    layer = call.module
    assert isinstance(layer, nn.Linear)
    weights = layer.weight.numel()
    bias = Span(weights, weights + layer.bias.numel()) if layer.bias is not None else None
    factors = call.factors(linear, (Span(0, weights), bias), torch.float32)
    assert isinstance(factors, LinearFactors)
    return factors


def _stacked(passes: list[LinearFactors]) -> LinearFactors:
    a, b = torch.cat([factors.a for factors in passes]), torch.cat([factors.b for factors in passes])
    return passes[0].with_tensors({"a": a, "b": b})
