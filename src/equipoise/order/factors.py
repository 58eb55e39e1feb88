"""Exact signs from the factors of all workers' layers: one message of factors, one of numbers, and a slice of S each.

A worker holds some rows or columns of every layer of S. The factors of everybody's examples give it the products of
these with all terms, the products of its own terms with the others', and the change of its slice: the same arithmetic
as for its own examples and the whole of S, and no vector as long as the model ever travels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..comm.base import Comm
from ..signal.convolution import Convolved
from ..signal.factors_of_layer import Lookup, Made, Outer, Part
from ..signal.layers import Layers

_SENT = 8  # multiplications that one number sent is worth
_SMALL = 1 << 22  # multiplications that are cheaper done by everybody than shared out for a second message


class Form(NamedTuple):
    """How the factors of one layer travel."""

    kind: str  # outer: p inputs and q output gradients; lookup: a word and q of them; made: p numbers of a gradient
    p: int
    q: int
    weight: bool
    bias: bool
    length: int  # words or pixels of an example, at the most so far; 1 where the gradient was made

    @property
    def numbers(self) -> int:
        """Of one example."""
        return self.length * {"outer": self.p + self.q, "lookup": 1 + self.q, "made": self.p}[self.kind]

    @property
    def work(self) -> int:
        """Multiplications for the product of two examples."""
        return self.length**2 * (self.q if self.kind == "lookup" else self.p + self.q)


def forms_of(view: Layers) -> list[Form] | None:
    """None where products of factors would cost too much, or belong to tied weights: those need their cross terms."""
    known = all(isinstance(part, (Outer, Convolved, Lookup, Made)) for part in view.parts)
    return [_form(part) for part in view.parts] if known and not view.regions() else None


def _form(part: Part) -> Form:
    has = part.weight is not None, part.bias is not None
    if isinstance(part, Lookup):
        assert part.weight is not None
        q = part.b.shape[2]
        return Form("lookup", (part.weight[1] - part.weight[0]) // q, q, *has, part.a.shape[1])
    if isinstance(part, (Outer, Convolved)):
        _, t, p, q = part.shape
        as_factors = (t * t + _SENT * t) * (p + q)
        if as_factors <= (1 + _SENT) * p * q and not (isinstance(part, Convolved) and part.groups > 1):
            return Form("outer", p, q, *has, t)
    return Form("made", sum(stop - start for start, stop in part.places()), 1, *has, 1)


class Room(NamedTuple):
    """What a message has room for: the same on all workers, and it only grows."""

    items: int
    terms: int
    forms: list[Form]
    shared: bool = False  # does everybody compute only a part, for a second message? Never changes: it cuts S

    @property
    def head(self) -> int:
        """Numbers that tell what a worker has: items, terms, and the length of every layer."""
        return 2 + len(self.forms)

    @property
    def width(self) -> int:
        return 1 + sum(form.numbers for form in self.forms)

    def plain(self) -> list[Any]:
        """For checkpoints."""
        return [self.items, self.terms, [list(form) for form in self.forms], self.shared]


def room_of(plain: Any) -> Room:
    items, terms, forms, shared = plain
    return Room(items, terms, [Form(*form) for form in forms], shared)


def merged(rooms: list[Room], workers: int) -> Room:
    """Room for what any of these need."""
    forms = []
    for several in zip(*(room.forms for room in rooms), strict=True):
        made = [form for form in several if form.kind == "made"]
        forms.append(made[0] if made else max(several, key=lambda form: form.length))
    items, terms = max(room.items for room in rooms), max(room.terms for room in rooms)
    return Room(items, terms, forms, (workers * items) ** 2 * sum(form.work for form in forms) > _SMALL)


class Slices:
    """Everybody's factors, and the places of this worker's slice of every layer in its part of S."""

    def __init__(self, room: Room, rank: int, size: int):
        self.room, self.rank, self.size = room, rank, size
        self.dimension = 0
        self.cuts: list[tuple[int, int]] = []
        for form in room.forms:
            along = self._along(form)
            lo, hi = along * rank // size, along * (rank + 1) // size
            self.cuts.append((self.dimension, hi - lo))
            self.dimension += self._weights(form, hi - lo) + self._biases(form, lo, hi)

    @staticmethod
    def _along(form: Form) -> int:
        """The side that is cut: the longer one, so that there is something for everybody."""
        return form.q if form.kind == "lookup" else max(form.p, form.q)

    @staticmethod
    def _weights(form: Form, count: int) -> int:
        if form.kind == "made":
            return count
        return count * (form.p if form.kind == "lookup" else min(form.p, form.q)) if form.weight else 0

    def _biases(self, form: Form, lo: int, hi: int) -> int:
        """Biases go with their outputs; where inputs are cut, the last worker has all of them: its slice is never empty."""
        if form.kind != "outer" or not form.bias:
            return 0
        return hi - lo if form.q > form.p else form.q * (self.rank == self.size - 1)

    def view(self, rows: torch.Tensor, mine: bool) -> Layers:
        """Examples in rows of messages; `mine`: only this worker's slice of their gradients."""
        parts, start = [], 1
        for form, (place, count) in zip(self.room.forms, self.cuts, strict=True):
            if count or not mine:
                parts.append(self._part(form, rows[:, start : start + form.numbers], place, mine))
            start += form.numbers
        return Layers.of_planned(parts, rows[:, 0], self.dimension)

    def _part(self, form: Form, numbers: torch.Tensor, start: int, mine: bool) -> Part:
        along = self._along(form)
        lo, hi = (along * self.rank // self.size, along * (self.rank + 1) // self.size) if mine else (0, along)
        stop = start + self._weights(form, hi - lo)
        weight = (start, stop) if form.weight else None
        biases = self._biases(form, lo, hi) if mine else form.q
        bias = (stop, stop + biases) if form.bias and biases else None
        if form.kind == "made":
            return Made((start, stop), None, numbers[:, lo:hi])
        t = form.length
        if form.kind == "lookup":
            words, outputs = numbers[:, :t].long(), _words(numbers[:, t:], t)
            return Lookup((start, stop), None, words, outputs[:, :, lo:hi])
        a, b = _words(numbers[:, : t * form.p], t), _words(numbers[:, t * form.p :], t)
        if form.q > form.p:
            return Outer(weight, bias, a, b[:, :, lo:hi])
        return Outer(weight, bias, a[:, :, lo:hi], b)


def _words(rows: torch.Tensor, length: int) -> torch.Tensor:
    """[examples, words, numbers] of rows that lie apart. A single word's stride is its row's: as one matrix to torch."""
    if length > 1:
        return rows.reshape(len(rows), length, -1)
    return rows.as_strided((len(rows), 1, rows.shape[1]), (rows.stride(0), rows.stride(0), 1), rows.storage_offset())


def message_of(room: Room, view: Layers | None, terms: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """[items, scale | factors | weights in the terms | head]: what does not fit is left out, and the head says so."""
    message = like.new_zeros(room.items, room.width + room.terms + room.head)
    if view is None:
        return message
    ready = view.parts if view.regions() else view.whole
    parts = [_formed(*several) for several in zip(room.forms, ready, view.parts, strict=True)]
    lengths = [1 if isinstance(part, Made) else part.tensors()["a"].shape[1] for part in parts]
    head = [view.items, len(terms), *lengths]
    message[0, -room.head :] = torch.tensor(head, dtype=like.dtype)
    if fits(head, room):
        filled = message[: view.items]
        filled[:, 0] = view.scale
        start = 1
        for form, part, length in zip(room.forms, parts, lengths, strict=True):
            for tensor in part.tensors().values():
                numbers = tensor[0].numel() if len(tensor) else 0
                filled[:, start : start + numbers] = tensor.reshape(view.items, -1)
                start += numbers // length * form.length
        filled[:, start : start + len(terms)] = torch.as_tensor(terms.T, dtype=like.dtype, device=like.device)
    return message


def _formed(form: Form, ready: Part, part: Part) -> Part:
    """A layer as it travels, out of how this view has planned it or out of its raw factors."""
    if form.kind == "made":
        for one in (ready, part):
            if isinstance(one, Made):
                return one
        assert isinstance(part, (Outer, Convolved))
        return part.made()
    if isinstance(ready, (Outer, Lookup)):
        return ready
    return part.outer() if isinstance(part, Convolved) else part


def fits(head: list[int], room: Room) -> bool:
    limits = [room.items, room.terms, *(form.length for form in room.forms)]
    return all(a <= b for a, b in zip(head, limits, strict=True))


def slices_of(comm: Comm, room: Room) -> Slices:
    return Slices(room, comm.rank, comm.size) if room.shared else Slices(room, 0, 1)
