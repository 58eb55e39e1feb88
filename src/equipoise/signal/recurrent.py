"""The factors of `nn.LSTM`, `nn.GRU` and `nn.RNN`: two linear maps per layer and direction, of input and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .layer_factors import LinearFactors, Span

Cell = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def recurrent(
    module: nn.RNNBase,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    b: list[torch.Tensor | None],
    span_of: Callable[[Any], Span | None],
    dtype: torch.dtype,
) -> list[LinearFactors]:
    x = args[0] if args else kwargs["input"]
    dropped = module.dropout > 0 and module.training and module.num_layers > 1
    if not isinstance(x, torch.Tensor) or x.ndim != 3 or module.proj_size or dropped:
        return []
    inner = (x if module.batch_first else x.transpose(0, 1)).detach().to(dtype)
    given = args[1] if len(args) > 1 else kwargs.get("hx")
    starts = (given if isinstance(given, tuple) else (given,)) if given is not None else ()
    directions = 2 if module.bidirectional else 1
    cell = _CELLS[module.mode]
    maps: list[LinearFactors] = []  # `b` holds the zeros whose gradients are the output gradients
    zeros: list[torch.Tensor] = []
    ends: list[list[torch.Tensor]] = [[], []]
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            names = [f"{kind}_l{layer}{'_reverse' if direction else ''}" for kind in ("weight_ih", "weight_hh")]
            biases = [name.replace("weight", "bias") for name in names]
            number = layer * directions + direction
            first = [start[number].detach().to(dtype) for start in starts] or [
                inner.new_zeros(len(inner), module.hidden_size)
            ]
            h, c = first[0], first[-1]
            w = [getattr(module, name).detach().to(dtype) for name in names]
            shifts = [getattr(module, n).detach().to(dtype) if module.bias else None for n in biases]
            zero = [inner.new_zeros(*inner.shape[:2], len(w[0]), requires_grad=True) for _ in names]
            mapped = F.linear(inner, w[0], shifts[0]) + zero[0]
            steps = range(inner.shape[1])
            before: dict[int, torch.Tensor] = {}
            after: dict[int, torch.Tensor] = {}
            for t in reversed(steps) if direction else steps:
                before[t] = h
                h, c = cell(mapped[:, t], F.linear(h, w[1], shifts[1]) + zero[1][:, t], h, c)
                after[t] = h
            outputs.append(torch.stack([after[t] for t in steps], 1))
            ends[0].append(h)
            ends[1].append(c)
            zeros += zero
            states = torch.stack([before[t] for t in steps], 1).detach()
            for name, bias, a, z in zip(names, biases, (inner.detach(), states), zero, strict=True):
                maps.append(LinearFactors(span_of(getattr(module, name)), span_of(getattr(module, bias, None)), a, z))
        inner = torch.cat(outputs, -1)
    out = inner if module.batch_first else inner.transpose(0, 1)
    seeds = [(y, g) for y, g in zip((out, *(torch.stack(end) for end in ends)), b, strict=False) if g is not None]
    if not seeds:
        return [LinearFactors(p.weight, p.bias, p.a, p.b.detach()) for p in maps]
    gradients = torch.autograd.grad([y for y, _ in seeds], zeros, [g for _, g in seeds])
    return [LinearFactors(p.weight, p.bias, p.a, g) for p, g in zip(maps, gradients, strict=True)]


def _lstm(
    given: torch.Tensor, mapped: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = (given + mapped).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(
    given: torch.Tensor, mapped: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    (r, z, n), (r_h, z_h, n_h) = given.chunk(3, 1), mapped.chunk(3, 1)
    z = torch.sigmoid(z + z_h)
    return (1 - z) * torch.tanh(n + torch.sigmoid(r + r_h) * n_h) + z * h, c


def _rnn(activation: Callable[[torch.Tensor], torch.Tensor]) -> Cell:
    return lambda given, mapped, h, c: (activation(given + mapped), c)


_CELLS: dict[str, Cell] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _rnn(torch.tanh), "RNN_RELU": _rnn(torch.relu)}
