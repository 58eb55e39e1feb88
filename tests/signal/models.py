"""Small models, one for every kind of layer with a rule, and gradients of single examples by autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Case = tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]


class Tied(nn.Module):
    """Tokens in, tokens out, through one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.table(x)))).mean(1)


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Attention(nn.Module):
    """Self-attention through linear layers, with residuals and LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (x + self.out(h)).mean(1)


class Bare(nn.Module):
    """A parameter that is in no layer, and a layer whose weight is also used elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(7))
        self.one, self.two = nn.Linear(7, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x + self.bias))) + (x @ self.one.weight)[:, :3]


class Recurrent(nn.Module):
    """Tokens in, one output, through a recurrent layer: all states and the last one are used."""

    def __init__(self, layer: nn.RNNBase, dropout: float = 0.0) -> None:
        super().__init__()
        self.table, self.layer, self.dropout = nn.Embedding(11, 6), layer, nn.Dropout(dropout)
        directions = 2 if layer.bidirectional else 1
        self.head = nn.Linear(directions * layer.hidden_size, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.table(x)
        states, last = self.layer(tokens if self.layer.batch_first else tokens.transpose(0, 1))
        states = states if self.layer.batch_first else states.transpose(0, 1)
        ends = sum(end.sum((0, 2)) for end in (last if isinstance(last, tuple) else (last,)))
        return self.head(self.dropout(states)).mean(1) + ends[:, None]


class Fused(nn.Module):
    """`nn.MultiheadAttention`, tokens first or examples first, self-attention or cross-attention."""

    def __init__(self, cross: bool = False, masked: bool = False, **options: bool) -> None:
        super().__init__()
        self.cross, self.masked, self.first = cross, masked, options.get("batch_first", False)
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x if self.first else x.transpose(0, 1)
        other = torch.tanh(turned.flip(1 if self.first else 0)) if self.cross else turned
        padded = torch.tensor([[False] * 4 + [True]]).expand(len(x), -1) if self.masked else None
        mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype) if self.masked else None
        padding = None if padded is None else torch.zeros(padded.shape, dtype=x.dtype).masked_fill(padded, -torch.inf)
        attended = self.attention(turned, other, other, key_padding_mask=padding, attn_mask=mask)[0]
        return (attended if self.first else attended.transpose(0, 1)).mean(1)


def vectors(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda count: torch.randn(count, *shape)


def tokens(count: int) -> torch.Tensor:
    return torch.randint(11, (count, 5))


CASES: dict[str, Case] = {
    "linear": (lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3, bias=False)), vectors(7)),
    "inplace": (lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(inplace=True), nn.Linear(9, 3)), vectors(7)),
    "linear on tokens": (
        lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3), nn.Flatten()),
        vectors(4, 7),
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.Flatten()
        ),
        vectors(2, 7, 6),
    ),
    "large convolution": (
        lambda: nn.Sequential(nn.Conv2d(12, 40, 3, dilation=2, padding="same", padding_mode="reflect"), nn.Flatten()),
        vectors(12, 4, 4),
    ),
    "grouped convolution": (lambda: nn.Sequential(nn.Conv2d(4, 6, (1, 3), groups=2), nn.Flatten()), vectors(4, 3, 5)),
    "convolution of lines": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), nn.Flatten()),
        vectors(3, 8),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(11, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)), tokens),
    "layer norm": (lambda: nn.Sequential(nn.Linear(7, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)), vectors(7)),
    "layer norm on images": (
        lambda: nn.Sequential(nn.LayerNorm([2, 3, 4]), nn.Flatten(), nn.Linear(24, 2)),
        vectors(2, 3, 4),
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3)),
        vectors(2, 5, 5),
    ),
    "large eps": (
        lambda: nn.Sequential(nn.Linear(7, 8), nn.LayerNorm(8, eps=0.5), nn.GroupNorm(2, 8, eps=0.3), nn.Linear(8, 3)),
        vectors(7),
    ),
    "unequal strides and dilations": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, (2, 3), stride=(2, 1), dilation=(1, 2)), nn.Tanh(), nn.Flatten()),
        vectors(2, 7, 8),
    ),
    "unequal the other way": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2, stride=(1, 3), dilation=(3, 1)), nn.Tanh(), nn.Flatten()),
        vectors(2, 8, 9),
    ),
    "group norm on vectors": (lambda: nn.Sequential(nn.Linear(7, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)), vectors(7)),
    "tied weights": (Tied, tokens),
    "one layer twice": (Twice, vectors(7)),
    "attention": (Attention, vectors(5, 8)),
    "partly frozen": (lambda: frozen(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))), vectors(7)),
}


FUSED: dict[str, Case] = {
    "lstm": (lambda: Recurrent(nn.LSTM(6, 5, batch_first=True)), tokens),
    "deep bidirectional lstm": (lambda: Recurrent(nn.LSTM(6, 4, 2, bidirectional=True, bias=False)), tokens),
    "gru": (lambda: Recurrent(nn.GRU(6, 5, 2, batch_first=True)), tokens),
    "rnn": (lambda: Recurrent(nn.RNN(6, 5)), tokens),
    "fused attention": (lambda: Fused(batch_first=True), vectors(5, 8)),
    "fused attention of others": (lambda: Fused(cross=True), vectors(5, 8)),
    "masked attention": (lambda: Fused(masked=True, batch_first=True, bias=False), vectors(5, 8)),
    "encoder layer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), nn.Flatten()),
        vectors(5, 8),
    ),
}


def frozen(model: nn.Sequential) -> nn.Sequential:
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    model[2].bias.requires_grad_(False)  # type: ignore[union-attr]
    return model


def loss(outputs: torch.Tensor) -> torch.Tensor:
    """Not linear, a mean over examples."""
    return (outputs.flatten(1).sin().sum(1) + outputs.flatten(1).pow(2).mean(1)).mean()


def gradients(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """One row per example."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for one in inputs:
        single = torch.autograd.grad(loss(model(one.unsqueeze(0))), parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(single, parameters, strict=True)]
            )
        )
    return torch.stack(rows)
