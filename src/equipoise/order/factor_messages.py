"""Messages of layer factors, for exact signs over all workers without sending a gradient.

A worker holds some rows or columns of every layer of S. From the factors of all workers' examples it computes the
products of its slice with all terms, the products of its own terms with the others', and the change of its slice: the
same arithmetic as for its own examples and all of S. No vector as long as the model is ever sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..comm.base import Comm
from ..core.errors import UserError
from ..signal.convolution import ConvolutionFactors
from ..signal.factor_view import FactorView
from ..signal.layer_factors import EmbeddingFactors, ExampleGradients, LayerFactors, LinearFactors, Span

_SENT = 8  # multiplications that sending one number is worth
_SMALL = 1 << 22  # multiplications that every worker rather repeats than distributes at the price of a second message


class LayerLayout(NamedTuple):
    """How the factors of one layer are packed into a message."""

    kind: str  # linear: p inputs, q output gradients; embedding: a token, q output gradients; gradient: p numbers
    p: int
    q: int
    weight: bool
    bias: bool
    length: int  # longest sequence (tokens, pixels) of an example so far; 1 where the gradient is sent

    @property
    def numbers(self) -> int:
        """Numbers sent per example."""
        return self.length * {"linear": self.p + self.q, "embedding": 1 + self.q, "gradient": self.p}[self.kind]

    @property
    def work(self) -> int:
        """Multiplications for the product of two examples."""
        return self.length**2 * (self.q if self.kind == "embedding" else self.p + self.q)


def layer_layouts(view: FactorView) -> list[LayerLayout] | None:
    """None where factors cannot be exchanged: their products cost too much, or weights are tied (cross terms)."""
    kinds = (LinearFactors, ConvolutionFactors, EmbeddingFactors, ExampleGradients)
    supported = all(isinstance(factors, kinds) for factors in view.layers)
    return [_layer_layout(factors) for factors in view.layers] if supported and not view.regions() else None


def _layer_layout(factors: LayerFactors) -> LayerLayout:
    has = factors.weight is not None, factors.bias is not None
    if isinstance(factors, EmbeddingFactors):
        assert factors.weight is not None
        q = factors.b.shape[2]
        return LayerLayout("embedding", factors.weight.size // q, q, *has, factors.a.shape[1])
    if isinstance(factors, (LinearFactors, ConvolutionFactors)):
        _, t, p, q = factors.shape
        as_factors = (t * t + _SENT * t) * (p + q)
        grouped = isinstance(factors, ConvolutionFactors) and factors.groups > 1
        if as_factors <= (1 + _SENT) * p * q and not grouped:
            return LayerLayout("linear", p, q, *has, t)
    return LayerLayout("gradient", sum(span.size for span in factors.spans()), 1, *has, 1)


class BufferLayout(NamedTuple):
    """The capacity of a message: the same on all workers, and it only grows."""

    items: int
    terms: int
    layers: list[LayerLayout]
    sharded: bool = False  # is the work distributed, at the price of a second message? Never changes: it slices S

    @property
    def header(self) -> int:
        """Numbers that say what a worker sends: items, terms, and the sequence length of every layer."""
        return 2 + len(self.layers)

    @property
    def width(self) -> int:
        """Numbers of one example: its scale and its factors."""
        return 1 + sum(layer.numbers for layer in self.layers)

    def fits(self, header: list[int]) -> bool:
        limits = [self.items, self.terms, *(layer.length for layer in self.layers)]
        return all(a <= b for a, b in zip(header, limits, strict=True))

    def grown(self, headers: list[list[int]]) -> BufferLayout:
        """A layout that all these headers fit into."""
        items, terms, *lengths = (max(column) for column in zip(*headers, strict=True))
        layers = [
            layer._replace(length=max(layer.length, length)) for layer, length in zip(self.layers, lengths, strict=True)
        ]
        return BufferLayout(max(self.items, items), max(self.terms, terms), layers, self.sharded)

    def to_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {**self._asdict(), "layers": [layer._asdict() for layer in self.layers]}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> BufferLayout:
        return cls(**{**state, "layers": [LayerLayout(**layer) for layer in state["layers"]]})


def merge_layouts(layouts: list[BufferLayout], workers: int) -> BufferLayout:
    """The smallest layout that holds the messages of all of these."""
    layers = []
    for alternatives in zip(*(layout.layers for layout in layouts), strict=True):
        gradients = [layer for layer in alternatives if layer.kind == "gradient"]
        layers.append(gradients[0] if gradients else max(alternatives, key=lambda layer: layer.length))
    items, terms = max(layout.items for layout in layouts), max(layout.terms for layout in layouts)
    return BufferLayout(items, terms, layers, (workers * items) ** 2 * sum(layer.work for layer in layers) > _SMALL)


class Slices:
    """Unpacks the factors of all workers, and knows where this worker's slice of every layer lies in its part of S."""

    def __init__(self, layout: BufferLayout, rank: int, size: int):
        self.layout, self.rank, self.size = layout, rank, size
        self.dimension = 0
        self.offsets: list[tuple[int, int]] = []  # start in this worker's S, and rows or columns of the slice
        for layer in layout.layers:
            lo, hi = self._bounds(layer)
            self.offsets.append((self.dimension, hi - lo))
            self.dimension += self._weights(layer, hi - lo) + self._biases(layer, lo, hi)

    @staticmethod
    def _sliced_side(layer: LayerLayout) -> int:
        """The side that is sliced: the longer one, so that every worker gets a part."""
        return layer.q if layer.kind == "embedding" else max(layer.p, layer.q)

    def _bounds(self, layer: LayerLayout) -> tuple[int, int]:
        side = self._sliced_side(layer)
        return side * self.rank // self.size, side * (self.rank + 1) // self.size

    @staticmethod
    def _weights(layer: LayerLayout, count: int) -> int:
        if layer.kind == "gradient":
            return count
        return count * (layer.p if layer.kind == "embedding" else min(layer.p, layer.q)) if layer.weight else 0

    def _biases(self, layer: LayerLayout, lo: int, hi: int) -> int:
        """Biases follow their outputs. Where inputs are sliced, the last rank has all: its slice is never empty."""
        if layer.kind != "linear" or not layer.bias:
            return 0
        return hi - lo if layer.q > layer.p else layer.q * (self.rank == self.size - 1)

    def view(self, rows: torch.Tensor, own: bool) -> FactorView:
        """The examples in the rows of messages; `own`: only this worker's slice of their gradients."""
        layers, start = [], 1
        for layer, (offset, count) in zip(self.layout.layers, self.offsets, strict=True):
            if count or not own:
                layers.append(self._factors(layer, rows[:, start : start + layer.numbers], offset, own))
            start += layer.numbers
        return FactorView.from_planned(layers, rows[:, 0], self.dimension)

    def _factors(self, layer: LayerLayout, numbers: torch.Tensor, start: int, own: bool) -> LayerFactors:
        lo, hi = self._bounds(layer) if own else (0, self._sliced_side(layer))
        stop = start + self._weights(layer, hi - lo)
        weight = Span(start, stop) if layer.weight else None
        biases = self._biases(layer, lo, hi) if own else layer.q
        bias = Span(stop, stop + biases) if layer.bias and biases else None
        if layer.kind == "gradient":
            return ExampleGradients(Span(start, stop), None, numbers[:, lo:hi])
        t = layer.length
        if layer.kind == "embedding":
            tokens, outputs = numbers[:, :t].long(), _sequences(numbers[:, t:], t)
            return EmbeddingFactors(Span(start, stop), None, tokens, outputs[:, :, lo:hi])
        a, b = _sequences(numbers[:, : t * layer.p], t), _sequences(numbers[:, t * layer.p :], t)
        if layer.q > layer.p:
            return LinearFactors(weight, bias, a, b[:, :, lo:hi])
        return LinearFactors(weight, bias, a[:, :, lo:hi], b)


def _sequences(rows: torch.Tensor, length: int) -> torch.Tensor:
    """[examples, length, numbers] of strided rows. With length 1 a view, whose strides let torch see one matrix."""
    if length > 1:
        return rows.reshape(len(rows), length, -1)
    return rows.as_strided((len(rows), 1, rows.shape[1]), (rows.stride(0), rows.stride(0), 1), rows.storage_offset())


def pack_message(layout: BufferLayout, view: FactorView | None, terms: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """[items, scale | factors | weights in the terms | header]. Where it does not fit, only the header is filled."""
    message = like.new_zeros(layout.items, layout.width + layout.terms + layout.header)
    if view is None:
        return message
    if len(view.layers) != len(layout.layers):
        raise UserError(
            "this batch went through its layers in another way than the first one (such as cross- instead of "
            "self-attention), and factors are exchanged by layer: use --order.coordinate shards"
        )
    planned = view.layers if view.regions() else view.direct
    sent = [_as_sent(*several) for several in zip(layout.layers, planned, view.layers, strict=True)]
    lengths = [1 if isinstance(factors, ExampleGradients) else factors.tensors()["a"].shape[1] for factors in sent]
    header = [view.items, len(terms), *lengths]
    message[0, -layout.header :] = torch.tensor(header, dtype=like.dtype)
    if layout.fits(header):
        filled = message[: view.items]
        filled[:, 0] = view.scale
        start = 1
        for layer, factors, length in zip(layout.layers, sent, lengths, strict=True):
            for tensor in factors.tensors().values():
                numbers = tensor[0].numel() if len(tensor) else 0
                filled[:, start : start + numbers] = tensor.reshape(view.items, -1)
                start += numbers // length * layer.length
        filled[:, start : start + len(terms)] = torch.as_tensor(terms.T, dtype=like.dtype, device=like.device)
    return message


def _as_sent(layer: LayerLayout, planned: LayerFactors, raw: LayerFactors) -> LayerFactors:
    """The factors in the form in which they are sent, reusing what the view has computed already."""
    if layer.kind == "gradient":
        for factors in (planned, raw):
            if isinstance(factors, ExampleGradients):
                return factors
        assert isinstance(raw, (LinearFactors, ConvolutionFactors))
        return raw.materialize()
    if isinstance(planned, (LinearFactors, EmbeddingFactors)):
        return planned
    return raw.linear() if isinstance(raw, ConvolutionFactors) else raw


def local_slices(comm: Comm, layout: BufferLayout) -> Slices:
    """This worker's slices; all of S where the work is not distributed."""
    return Slices(layout, comm.rank, comm.size) if layout.sharded else Slices(layout, 0, 1)
