"""Embedding, LSTM, output: language model or classifier of sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..core.method import Metadata, option
from ..data.base import LoadedData
from .base import Model


@dataclass
class LSTM(Model):
    """[B, T] words to [B, T, V] logits of the next word, or to [B, classes] from the last word's state.

    Every window starts from a zero state, so examples are independent and may come in any order. Dropout is applied
    to embeddings, between layers and before the output, as in Zaremba et al. (2014); tied weights: Press and
    Wolf (2017).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="lstm", help="embedding, LSTM, tied output", cites=("hochreiter1997long",)
    )

    width: int = option(32, help="size of embeddings and states", least=1)
    layers: int = option(2, help="LSTM layers", least=1)
    dropout: float = option(0.0, help="dropout probability", least=0, below=1)
    tied: bool = option(True, help="language models: the output shares the weights of the embedding")

    def build(self, data: LoadedData) -> nn.Module:
        self.require(data, "tokens")
        return _LSTMNet(self, data)


class _LSTMNet(nn.Module):
    def __init__(self, options: LSTM, data: LoadedData):
        super().__init__()
        assert data.tokens is not None
        self.language = data.task == "language"
        self.embedding = nn.Embedding(data.tokens, options.width)
        self.lstm = nn.LSTM(
            options.width,
            options.width,
            options.layers,
            batch_first=True,
            # torch warns about dropout between layers where there is only one.
            dropout=options.dropout if options.layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(options.dropout)
        self.head = nn.Linear(options.width, data.outputs)
        # Embeddings of variance 1 would be far too large as output weights.
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)
        if self.language and options.tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.dropout(self.embedding(x)))
        if not self.language:
            # Padding (word 0) is at the end; a sentence without words is read as one padding word.
            last = ((x != 0).sum(dim=1) - 1).clamp(min=0)
            states = states[torch.arange(len(x), device=x.device), last]
        logits: torch.Tensor = self.head(self.dropout(states))
        return logits
