from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ..core.errors import UserError
from ..core.method import option
from .base import Signal
from .convolution import Convolved
from .count_sketch import CountSketch
from .factors_of_layer import Lookup, Made, Outer, Part, hashed_words
from .hooks import calls_of, refuse_batch_norm
from .rows import Rows
from .rules import Places, rule_of


@dataclass
class Projection(Signal):
    """A sketch of every layer's gradient, made from its factors.

        g_i = sum_t b_it a_it'   is seen as   sum_t (Q b_it) (P a_it)'                 kronecker: per layer
                                         or   sum_t sketch(b_it) * sketch(a_it)        count: all layers together

    A few percent of a step instead of two more products. Signs come from a space of `width`^2 numbers per layer, or of
    `buckets` numbers: good where the spectrum of the gradients decays, worth little where it is flat.

    Reference: Choe et al., What is Your Data Worth to GPT? (LoGra), 2024; Pham and Pagh, KDD 2013 (count sketch).
    """

    width: int = option(8, help="kronecker: numbers that each factor of a layer is projected to", least=1)
    kind: str = option("kronecker", help="kind of sketch", choices=("kronecker", "count"))
    buckets: int = option(512, help="count: numbers of the sketch", least=1)

    def init_state(self) -> None:
        self.model: nn.Module | None = None
        self.passes: list[torch.Tensor] = []
        seed = self.context.worker.seed
        self.sketch: Sketch | CountSketch = (
            Sketch(seed, self.width) if self.kind == "kronecker" else CountSketch(seed, self.buckets)
        )

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if model is not self.model:
            refuse_batch_norm(model)
            self.model = model
            self.rules = {
                m: (rule, _places(m)) for m in model.modules() if (rule := rule_of(m)) is not None and _trains(m)
            }
            self.chosen = False
        with calls_of(self.rules) as calls:
            yield
        parts = [
            (call.module, call.part(*self.rules[call.module], torch.float32))
            for call in calls
            if len(call.a) == examples == call.shape[0]
        ]
        if not self.chosen:
            self._choose([(module, part) for module, part in parts if part is not None])
        used = [part for module, part in parts if module in self.rules and part is not None]
        sketches = [self.sketch(number, part) for number, part in enumerate(used)]
        self.passes.append(torch.cat(sketches, 1) if self.kind == "kronecker" else torch.stack(sketches).sum(0))

    def _choose(self, parts: list[tuple[nn.Module, Part]]) -> None:
        """Layers whose factors are larger than their gradient (early convolutions, norms) are left out: few
        numbers, much work.
        """
        if not parts:
            raise UserError("no layer of this model has a rule: use --order.signal batch with --order.group SIZE")
        cheap = [module for module, part in parts if _is_cheap(part)]
        chosen = cheap or [module for module, _ in parts]
        self.rules = {m: rule for m, rule in self.rules.items() if m in chosen}
        self.chosen = True

    def forget(self) -> None:
        self.passes = []

    def view(self) -> Rows:
        rows = torch.cat(self.passes) if len(self.passes) > 1 else self.passes[0]
        self.passes = []
        return Rows(rows * len(rows), [1] * len(rows))


def _places(module: nn.Module) -> Places:
    """A sketch has no place in the flat vector: only what is there and trains matters."""
    there = [getattr(module, name, None) for name in ("weight", "bias")]
    weight, bias = ((0, 0) if p is not None and p.requires_grad else None for p in there)
    return weight, bias


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _is_cheap(part: Part) -> bool:
    if isinstance(part, (Outer, Convolved)):
        _, t, p, q = part.shape
        return t * (p + q) <= p * q
    return isinstance(part, Lookup)


class Sketch:
    """Random projections, the same on every worker and after every resume: functions of seed, layer and shape alone."""

    def __init__(self, seed: int, width: int):
        self.seed, self.width = seed, width
        self.made: dict[tuple[int, ...], torch.Tensor] = {}

    def matrix(self, number: int, side: int, rows: int, like: torch.Tensor, columns: int | None = None) -> torch.Tensor:
        """Gaussian [rows, width], scaled so that products are kept on average."""
        columns = columns or self.width
        key = (number, side, rows, columns)
        if key not in self.made:
            generator = torch.Generator().manual_seed(hash((self.seed, *key)) % (1 << 62))
            drawn = torch.randn(rows, columns, generator=generator) / columns**0.5
            self.made[key] = drawn.to(like.device)
        return self.made[key]

    @torch.no_grad()
    def __call__(self, number: int, part: Part) -> torch.Tensor:
        """[B, numbers] of one layer."""
        if isinstance(part, Made):
            return part.rows @ self.matrix(number, 0, part.rows.shape[1], part.rows, self.width**2)
        if isinstance(part, Convolved):
            kernel = self.matrix(number, 0, part.shape[2] * part.groups, part.a).T
            shape = (self.width, part.a.shape[1], *part.kernel)
            patches = F.conv2d(part.a, kernel.reshape(shape), stride=part.stride, dilation=part.dilation).flatten(2)
            outputs = torch.matmul(self.matrix(number, 1, part.b.shape[1], part.b).T, part.b.flatten(2))
            if part.bias is not None:
                patches = patches + self.matrix(number, 2, 1, part.a).T
            return torch.bmm(outputs, patches.transpose(1, 2)).flatten(1)
        assert isinstance(part, (Outer, Lookup))
        if isinstance(part, Lookup):
            inputs = hashed_words(part.a, self.seed, self.width, number)
        else:
            inputs = _mapped(part.a, self.matrix(number, 0, part.a.shape[2], part.a))
            if part.bias is not None:
                inputs += self.matrix(number, 2, 1, part.a)  # a bias is a weight whose input is 1
        outputs = _mapped(part.b, self.matrix(number, 1, part.b.shape[2], part.b))
        if outputs.shape[1] == 1:
            return (outputs.transpose(1, 2) * inputs).flatten(1)
        return torch.bmm(outputs.transpose(1, 2), inputs).flatten(1)


def _mapped(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`rows @ matrix` as one product: a batch of them is slower."""
    return torch.mm(rows.flatten(0, 1), matrix).view(*rows.shape[:2], -1)
