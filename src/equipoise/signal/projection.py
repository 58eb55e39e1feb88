from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ..core.errors import UserError
from ..core.method import option
from .attribution import without_examples
from .base import Signal
from .convolution import ConvolutionFactors
from .count_sketch import CountSketch
from .hooks import layer_calls, refuse_batch_norm
from .layer_factors import EmbeddingFactors, ExampleGradients, LayerFactors, LinearFactors, Span, hashed_tokens
from .layer_rules import ParameterSpans, idle, rule_of
from .model_calls import model_calls
from .replay_view import ModelCall
from .rows import Rows


@dataclass
class Projection(Signal):
    """A sketch of every layer's gradient, computed from its factors.

        g_i = sum_t b_it a_it'   becomes   sum_t (Q b_it) (P a_it)'                 kronecker: per layer
                                 or   sum_t sketch(b_it) * sketch(a_it)        count: all layers together

    It costs a few percent of a step, instead of two more products. Signs are chosen in a space of `width`^2 numbers per
    layer, or of `buckets` numbers: good where the spectrum of the gradients decays, worth little where it is flat.

    Reference: Choe et al., What is Your Data Worth to GPT? (LoGra), 2024; Pham and Pagh, KDD 2013 (count sketch).
    """

    width: int = option(8, help="kronecker: numbers that each factor of a layer is projected to", least=1)
    kind: str = option("kronecker", help="kind of sketch", choices=("kronecker", "count"))
    buckets: int = option(512, help="count: numbers of the sketch", least=1)

    def init_state(self) -> None:
        self.model: nn.Module | None = None
        self.passes: list[torch.Tensor] = []
        seed = self.context.worker.seed
        self.sketch: KroneckerSketch | CountSketch = (
            KroneckerSketch(seed, self.width) if self.kind == "kronecker" else CountSketch(seed, self.buckets)
        )

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        whole: contextlib.AbstractContextManager[list[ModelCall]] = contextlib.nullcontext([])
        if model is not self.model:
            refuse_batch_norm(model)
            whole = model_calls(model, examples)
            self.model = model
            self.one = torch.ones((), dtype=torch.float32, device=next(model.parameters()).device)
            self.rules = {
                m: (rule, _spans(m)) for m in model.modules() if (rule := rule_of(m)) is not None and _trains(m)
            }
            self.chosen, self.turned = False, set[nn.Module]()  # whose input does not have the examples first
        with whole as repeatable, layer_calls(self.rules) as calls:
            yield
        self.turned.update(without_examples(model, repeatable, self.rules))
        layers = [
            (call.module, factors)
            for call in calls
            if call.module not in self.turned
            and len(call.a) == examples == call.shape[0]
            and (factors := call.factors(*self.rules[call.module], torch.float32)) is not None
        ]
        if not self.chosen:
            self._choose(layers)
        self.passes.append(self._sketched(layers, examples))

    def _sketched(self, layers: list[tuple[nn.Module, LayerFactors]], examples: int) -> torch.Tensor:
        """Every layer has its own map and columns: zeros where this pass did not go through it, sums where it did
        several times.
        """
        own = self.kind == "kronecker"
        numbers = {module: number for number, module in enumerate(self.rules)}
        columns = self.width**2 if own else self.buckets
        rows = self.one.new_zeros(examples, len(numbers) if own else 1, columns)
        for module, factors in layers:
            if module in numbers:
                rows[:, numbers[module] if own else 0] += self.sketch(numbers[module], factors)
        return rows.flatten(1)

    def _choose(self, layers: list[tuple[nn.Module, LayerFactors]]) -> None:
        """Leave out layers whose factors are larger than their gradient (early convolutions, norms): they have few
        numbers and take much work.
        """
        if not layers:
            raise UserError("no layer of this model has a rule: use --order.signal batch with --order.group SIZE")
        cheap = [module for module, factors in layers if _is_cheap(factors)]
        chosen = cheap or [module for module, _ in layers]
        called, one = {module for module, _ in layers}, torch.zeros(())
        # Later passes, and other workers, may go through layers that this pass left out.
        chosen += [m for m, (_, spans) in self.rules.items() if m not in called and _is_cheap(idle(m, spans, 1, one))]
        self.rules = {m: rule for m, rule in self.rules.items() if m in chosen}
        self.chosen = True

    def forget(self) -> None:
        self.passes = []

    def view(self) -> Rows:
        rows = torch.cat(self.passes) if len(self.passes) > 1 else self.passes[0]
        self.passes = []
        return Rows(rows * len(rows), [1] * len(rows))


def _spans(module: nn.Module) -> ParameterSpans:
    """A sketch has no span in the flat vector: it only matters which parameters exist and are trained."""
    parameters = [getattr(module, name, None) for name in ("weight", "bias")]
    weight, bias = (Span(0, 0) if p is not None and p.requires_grad else None for p in parameters)
    return weight, bias


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _is_cheap(factors: LayerFactors) -> bool:
    if isinstance(factors, (LinearFactors, ConvolutionFactors)):
        _, t, p, q = factors.shape
        return t * (p + q) <= p * q
    return isinstance(factors, EmbeddingFactors)


class KroneckerSketch:
    """Random projections, the same on every worker and after every resume: functions of seed, layer and shape alone."""

    def __init__(self, seed: int, width: int):
        self.seed, self.width = seed, width
        self.matrices: dict[tuple[int, ...], torch.Tensor] = {}

    def matrix(self, number: int, side: int, rows: int, like: torch.Tensor, columns: int | None = None) -> torch.Tensor:
        """Gaussian [rows, width], scaled so that inner products are unbiased."""
        columns = columns or self.width
        key = (number, side, rows, columns)
        if key not in self.matrices:
            generator = torch.Generator().manual_seed(hash((self.seed, *key)) % (1 << 62))
            drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float32) / columns**0.5
            self.matrices[key] = drawn.to(like.device)
        return self.matrices[key]

    @torch.no_grad()
    def __call__(self, number: int, factors: LayerFactors) -> torch.Tensor:
        """[B, numbers] of one layer."""
        if isinstance(factors, ExampleGradients):
            return factors.rows @ self.matrix(number, 0, factors.rows.shape[1], factors.rows, self.width**2)
        if isinstance(factors, ConvolutionFactors):
            kernel = self.matrix(number, 0, factors.shape[2] * factors.groups, factors.a).T
            shape = (self.width, factors.a.shape[1], *factors.kernel)
            patches = F.conv2d(
                factors.a, kernel.reshape(shape), stride=factors.stride, dilation=factors.dilation
            ).flatten(2)
            outputs = torch.matmul(self.matrix(number, 1, factors.b.shape[1], factors.b).T, factors.b.flatten(2))
            if factors.bias is not None:
                patches = patches + self.matrix(number, 2, 1, factors.a).T
            return torch.bmm(outputs, patches.transpose(1, 2)).flatten(1)
        assert isinstance(factors, (LinearFactors, EmbeddingFactors))
        if isinstance(factors, EmbeddingFactors):
            inputs = hashed_tokens(factors.a, self.seed, self.width, number)
        else:
            inputs = _mapped(factors.a, self.matrix(number, 0, factors.a.shape[2], factors.a))
            if factors.bias is not None:
                inputs += self.matrix(number, 2, 1, factors.a)  # a bias is a weight whose input is 1
        outputs = _mapped(factors.b, self.matrix(number, 1, factors.b.shape[2], factors.b))
        if outputs.shape[1] == 1:
            return (outputs.transpose(1, 2) * inputs).flatten(1)
        return torch.bmm(outputs.transpose(1, 2), inputs).flatten(1)


def _mapped(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`rows @ matrix` as one product: faster than a batch of products."""
    return torch.mm(rows.flatten(0, 1), matrix).view(*rows.shape[:2], -1)
