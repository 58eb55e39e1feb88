from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .base import RESIDUAL, RESIDUALS
from .sparse import SparseWire, add_at, decode_sparse, encode_sparse, sparse_bytes


@dataclass
class TopK(SparseWire):
    """The elements with the largest magnitudes of each block: 195 times fewer bytes at the defaults.

        m = Q(top_k(e)),   k = keep L of every block of L,   |top_k(e) - e|^2 <= (1 - k/L) |e|^2

    Q rounds the k values. At 2 bits it is a sign and one of two magnitudes, the two that have the least squared error
    for the block; with them |m - e|^2 <= (1 - 1/L) |e|^2 still. At the same bytes more elements in 2 bits have a
    smaller error than fewer in 8 or 32, hence the default.
    Stores the residual, or leaves it in the worker's model where averages of models travel. Sends about 2 + log2(L / k)
    + `values` bits for each of the k elements: 0.021 bytes per element, the magnitudes (two bfloat16) included. With
    error feedback, or with replicas, exact in the limit with every sync that takes it; without (`feedback = 0`)
    clearly worse. `keep = 1, values = 32` is float32.

    Sparse messages need an all-gather, since sums of them are no longer sparse: each worker sends its message to N - 1
    others, and the gain over a float32 ring all-reduce falls as 2/N: 195 times at N = 2, 97 at 4, 24 at 16. With
    `reduce = "all-to-all"` the ranks sum their chunks and send the largest elements of the sums: 195 times at any N, at
    the price of a second residual.

    At 1/64 a residual that waits to be sent delays progress by many rounds. So averages of models leave it in the
    worker's model (`residual = "model"`, error reset). The workers' models then differ by what is not sent yet; their
    mean moves as in float32.

    As the outer step of DiLoCo with momentum 0 and `residual = "feedback"` it is SparseLoCo: error feedback, with some
    decay, replaces the outer momentum. The recipe: `sync=DiLoCo(lr=0.4, momentum=0), wire=TopK(keep=1/64, values=2,
    feedback=0.95, residual="feedback"), period=30`. With an outer momentum as well, what was delayed is counted twice.
    Reference: Stich et al., Sparsified SGD with Memory, NeurIPS 2018; Sarfi et al., Communication Efficient LLM
    Pre-training with SparseLoCo, 2025 (arXiv 2508.15706); Xie et al., CSER: Communication-efficient SGD with Error
    Reset, NeurIPS 2020.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="top-k",
        help="the largest elements of each block, with error feedback: SparseLoCo with DiLoCo",
        cites=("stich2018sparsified", "sarfi2025communication", "xie2020cser"),
    )

    residual: str = option("model", help=RESIDUAL, choices=RESIDUALS)

    def row_bytes(self, length: int) -> int:
        return sparse_bytes(length, self.keep, self.values)

    def encode_part(self, vector: torch.Tensor, length: int) -> torch.Tensor:
        return encode_sparse(vector, length, self.keep, self.values)

    def add_decoded_rows(self, codes: Sequence[torch.Tensor], vector: torch.Tensor, length: int, alpha: float) -> None:
        if len(vector):
            indices, values = decode_sparse(codes, -(-len(vector) // length), length, self.keep, self.values)
            add_at(vector, indices, values.mul_(alpha), length)
