"""A small causal transformer: language model or classifier of sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ..core.errors import UserError
from ..core.method import Metadata, option
from ..data.base import LoadedData
from .base import Model


@dataclass
class Transformer(Model):
    """[B, T] words to [B, T, V] logits of the next word, or to [B, classes] from the mean over the words.

    Causal attention, learned positions, LayerNorm before each sublayer, GELU of four times the width, initialised
    like GPT-2 (Radford et al., 2019); tied weights: Press and Wolf (2017).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="transformer", help="small causal transformer", cites=("vaswani2017attention",)
    )

    width: int = option(64, help="size of embeddings", least=1)
    heads: int = option(2, help="attention heads; must divide the width", least=1)
    layers: int = option(2, help="blocks", least=1)
    dropout: float = option(0.0, help="dropout probability", least=0, below=1)
    tied: bool = option(True, help="language models: the output shares the weights of the embedding")

    def check(self) -> None:
        if self.width % self.heads:
            fits = [n for n in range(1, self.width + 1) if self.width % n == 0]
            nearest = min(fits, key=lambda n: abs(n - self.heads))
            raise UserError(
                f"Transformer(width={self.width}, heads={self.heads}): heads must divide width: use {nearest} heads"
            )

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "tokens")
        return _TransformerNet(self, data)


class _TransformerNet(nn.Module):
    def __init__(self, options: Transformer, data: LoadedData):
        super().__init__()
        assert data.tokens is not None
        self.language = data.task == "language"
        self.embedding = nn.Embedding(data.tokens, options.width)
        self.positions = nn.Parameter(torch.empty(data.shape[0], options.width))
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.Sequential(*(_TransformerBlock(options) for _ in range(options.layers)))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, data.outputs, bias=not self.language)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # The residual stream sums 2 * layers outputs: smaller initial weights keep the sum small.
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * options.layers) ** 0.5 if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if self.language and options.tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dropout(self.embedding(x) + self.positions[: x.shape[1]])
        # No mask for padding (word 0): it is at the end, where causal attention from the words never reaches.
        h = self.norm(self.blocks(h))
        if not self.language:
            words = (x != 0).to(h.dtype).unsqueeze(-1)
            h = (h * words).sum(dim=1) / words.sum(dim=1).clamp(min=1)
        logits: torch.Tensor = self.head(h)
        return logits


class _TransformerBlock(nn.Module):
    """Attention, then two linear layers, each added to its input."""

    def __init__(self, options: Transformer):
        super().__init__()
        width = options.width
        self.heads, self.p = options.heads, options.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        batch, length, width = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = self.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        h = h + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        added: torch.Tensor = self.dropout(self.down(F.gelu(self.up(self.norm2(h)))))
        return h + added
