"""A model as flat vectors: algorithms see parameters `x` and gradients `g` as 1-D tensors.

Parameters are moved once into one buffer and become views of it, so `x` costs nothing per step. Gradients are views
of a second buffer where a method asks for them. A model of several dtypes keeps its widest dtype as views; the
narrower parameters keep their own storage and are copied in and out around each use (`gather`, `scatter`). So do
parameters that FSDP has sharded: the vector is of this process's shards.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from .errors import UserError
from .shards import is_shard, local, sharding_modules

if TYPE_CHECKING:
    from ..wire.base import Wire


class Slice(NamedTuple):
    """The place of one parameter in the flat vector."""

    name: str
    start: int
    stop: int
    shape: torch.Size


class ModelSize(NamedTuple):
    """What the cost of a message depends on."""

    elements: int  # trainable parameters
    itemsize: int  # bytes of one
    layers: int = 1  # parameter tensors
    shapes: tuple[tuple[int, ...], ...] = ()  # of these
    wire: Wire | None = None  # what compresses messages; None: vectors travel as they are


class Flat:
    """The trainable parameters of a module as one vector. Tied parameters appear once, frozen ones not at all."""

    def __init__(self, module: nn.Module):
        self.module = module
        self._sharding = sharding_modules(module)
        self._reshard()
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._refuse_misfits()
        values = list(self.parameters.values())
        dtype = values[0].dtype
        for p in values:
            dtype = torch.promote_types(dtype, p.dtype)
        self.slices: list[Slice] = []
        stop = 0
        for name, p in self.parameters.items():
            part = local(p)
            self.slices.append(Slice(name, stop, stop + part.numel(), part.shape))
            stop += part.numel()
        self.x = torch.empty(stop, dtype=dtype, device=values[0].device)
        self._gradient_storage: torch.Tensor | None = None
        placed = list(zip(self.slices, values, strict=True))
        self._staged = [(s, p) for s, p in placed if p.dtype != dtype or is_shard(p)]
        self._viewed = [(s, p) for s, p in placed if p.dtype == dtype and not is_shard(p)]
        self._adopt()

    def _refuse_misfits(self) -> None:
        if not self.parameters:
            raise UserError("the model has no trainable parameter: set requires_grad=True on what should train")
        spans = []
        for name, p in self.parameters.items():
            if not p.is_floating_point():
                raise UserError(f"parameter {name} is {p.dtype}: only real floating-point parameters can be averaged")
            part = local(p)
            if part.numel():
                reach = part.numel() if part.is_contiguous() else 1  # of interleaved ones only a common start counts
                spans.append((part.data_ptr(), part.data_ptr() + reach * part.element_size(), name))
        spans.sort()
        for (_, stop, one), (start, _, other) in itertools.pairwise(spans):
            if start < stop:
                raise UserError(
                    f"parameters {one} and {other} share memory but are two objects: tie them by assigning the "
                    "same nn.Parameter to both modules"
                )
        devices = {p.device for p in self.parameters.values()}
        if len(devices) > 1:
            raise UserError(
                f"the parameters lie on {sorted(map(str, devices))}: move the model to one device per worker"
            )

    @torch.no_grad()
    def _adopt(self) -> None:
        for s, p in self._viewed:
            view = self.x[s.start : s.stop].view(s.shape)
            view.copy_(p)
            p.data = view
        # Where each view must still be; an empty parameter has no address.
        self._homes = [(p, p.data_ptr()) for _, p in self._viewed if p.numel()]
        self.gather()

    def __len__(self) -> int:
        return self.x.numel()

    @property
    def size(self) -> ModelSize:
        shapes = tuple(tuple(s.shape) for s in self.slices)
        return ModelSize(len(self), self.x.element_size(), len(self.slices), shapes)

    @torch.no_grad()
    def widen(self, elements: int) -> torch.Tensor:
        """Move `x` to the front of a buffer with room for `elements` more, so that both go in one message; the
        buffer.
        """
        buffer = self.x.new_zeros(len(self) + elements)
        self.x = buffer[: len(self)]
        self._adopt()  # copies the parameters there
        return buffer

    @property
    def gradient_with_tail(self) -> torch.Tensor:
        """`g` and one more number behind it, in one piece of memory: for a scalar that rides along."""
        if self._gradient_storage is None:
            self._gradient_storage = self.x.new_zeros(len(self) + 1)
        return self._gradient_storage

    @property
    def g(self) -> torch.Tensor:
        return self.gradient_with_tail[:-1]

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        """`x` with the narrower parameters copied in; re-adopts a model whose parameters were moved elsewhere."""
        if any(p.data_ptr() != home for p, home in self._homes):
            if any(p.dtype != self.x.dtype or p.device != self.x.device for p, _ in self._homes):
                raise UserError(
                    "the model was converted after it was attached: call .to(...) before eq.attach or eq.train"
                )
            self._adopt()
        _copy([self.x[s.start : s.stop].view(s.shape) for s, _ in self._staged], [local(p) for _, p in self._staged])
        return self.x

    @torch.no_grad()
    def release(self) -> None:
        """Give the parameters memory of their own again: what saves models may take views of `x` for tied weights."""
        self.gather()
        for _, p in self._viewed:
            p.data = p.data.clone()

    @torch.no_grad()
    def scatter(self) -> None:
        """Write what a method changed in `x` back to the narrower parameters; the others are views already."""
        _copy([local(p) for _, p in self._staged], [self.x[s.start : s.stop].view(s.shape) for s, _ in self._staged])
        self._reshard()

    def _reshard(self) -> None:
        """After a forward pass without a backward pass FSDP keeps what it has gathered, and would use it again."""
        for module in self._sharding:
            module.reshard()

    @torch.no_grad()
    def zero_gradient(self, flat: bool) -> None:
        """Forget the gradients. `flat` keeps them as views of `g`; otherwise autograd hands over its own tensors."""
        if not flat:
            for p in self.parameters.values():
                p.grad = None
            return
        g = self.g.zero_()
        for s, p in self._viewed:
            if p.grad is None or p.grad.data_ptr() != g.data_ptr() + s.start * g.element_size():
                p.grad = g[s.start : s.stop].view(s.shape)
        for _, p in self._staged:
            p.grad = None

    @torch.no_grad()
    def gradient(self) -> torch.Tensor:
        """`g` of this step. A parameter without a gradient counts as zero; gradients elsewhere are brought home."""
        g, homes, gradients, unused = self.g, [], [], []
        start, itemsize = g.data_ptr(), g.element_size()
        for s, p in self._viewed:
            if p.grad is not None and p.grad.data_ptr() == start + s.start * itemsize:
                continue
            home = g[s.start : s.stop].view(s.shape)
            if p.grad is None:
                unused.append(home)
            else:
                homes.append(home)
                gradients.append(p.grad)
            p.grad = home
        for s, p in self._staged:
            home = g[s.start : s.stop].view(s.shape)
            if p.grad is None:
                unused.append(home)
            else:
                homes.append(home)
                gradients.append(local(p.grad))
        _copy(homes, gradients)
        _zero(unused)
        return g

    def gradients(self) -> list[torch.Tensor | None]:
        """Those in the parameters, by layer, wherever autograd has put them."""
        return [None if p.grad is None else local(p.grad) for p in self.parameters.values()]

    @torch.no_grad()
    def copy_gradient(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """This step's gradient as a vector of its own, wherever autograd has put it; `g` and the model are left
        alone.
        """
        out = torch.empty_like(self.x) if out is None else out
        parts, gradients, unused = [], [], []
        for s, gradient in zip(self.slices, self.gradients(), strict=True):
            if gradient is None:
                unused.append(out[s.start : s.stop])
            else:
                parts.append(out[s.start : s.stop].view(s.shape))
                gradients.append(gradient)
        _copy(parts, gradients)
        _zero(unused)
        return out

    @torch.no_grad()
    def scatter_gradient(self) -> None:
        """Write what a method changed in `g` back to the gradients of the narrower parameters."""
        for _, p in self._staged:
            if p.grad is None:
                p.grad = torch.empty_like(p)
        values = [self.g[s.start : s.stop].view(s.shape) for s, _ in self._staged]
        _copy([local(p.grad) for _, p in self._staged if p.grad is not None], values)

    def layers(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Named slices of a vector, one a parameter tensor."""
        return {s.name: vector[s.start : s.stop] for s in self.slices}


class Buffers:
    """The floating-point buffers of a module (BatchNorm statistics) as one vector, copied in and out.

    Integer buffers (counts) stay with their worker. Equal on all workers at the start.
    """

    def __init__(self, module: nn.Module):
        self.module = module

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Looked up at each use: a forward pass may assign a new tensor to a buffer."""
        return [b for b in self.module.buffers() if b.is_floating_point()]

    def __len__(self) -> int:
        return sum(b.numel() for b in self.buffers)

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        buffers = self.buffers
        if not buffers:
            return torch.empty(0)
        dtype = buffers[0].dtype
        for b in buffers:
            dtype = torch.promote_types(dtype, b.dtype)
        return torch.cat([b.reshape(-1).to(dtype) for b in buffers])

    @torch.no_grad()
    def scatter(self, vector: torch.Tensor) -> None:
        buffers = self.buffers
        parts = torch.split(vector, [b.numel() for b in buffers])
        _copy(buffers, [part.view(b.shape) for part, b in zip(parts, buffers, strict=True)])


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """All of them in a few calls of a device."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def _zero(targets: list[torch.Tensor]) -> None:
    if targets:
        torch._foreach_zero_(targets)


def digest(*tensors: torch.Tensor) -> str:
    """SHA-256 over the bytes of tensors, for comparing models in a shell."""
    sha = hashlib.sha256()
    for t in tensors:
        sha.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
