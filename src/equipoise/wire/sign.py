from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .base import Draw
from .pack import as_bytes, as_numbers, pack, packed_bytes, unpack
from .rows import RowWire

SCALE = torch.bfloat16


@dataclass
class Sign(RowWire):
    """Signs, times the mean magnitude of the block: 1 bit per element.

        m = s sign(e),   s = mean |e| over a block of L,   |m - e|^2 = |e|^2 - |e|_1^2 / L <= (1 - 1/L) |e|^2

    Stores the residual, and 1/N of a vector for the sums that this rank codes again. Sends 0.127 bytes per element,
    the scale (bfloat16) included: 31 times fewer than float32. Sums as in int8: float32, coded once more. With error
    feedback, or with replicas, exact in the limit with every sync that takes it.

    The error of one message is large (60 % for normal elements) and biased: with `feedback = 0` it does not converge
    in general. A zero is decoded as +s, which the residual takes back. Error feedback must see a gradient or a
    difference that the optimizer uses linearly: 1-bit Adam freezes Adam's second moments for that reason, so with Adam
    prefer local steps, where what is sent is a difference of models.
    Reference: Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019;
    Seide et al., 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
    DNNs, Interspeech 2014; Tang et al., 1-bit Adam, ICML 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="sign",
        help="1 bit and a scale per block: 31 times fewer bytes",
        cites=("karimireddy2019error", "seide2014bit", "tang2021bit"),
    )

    block: int = option(1024, help="elements that share a scale", least=1)

    def collective(self) -> str:
        return "all-to-all"

    def row_length(self) -> int:
        return self.block

    def row_bytes(self, length: int) -> int:
        return SCALE.itemsize + packed_bytes(length, 1)

    def encode_rows(self, rows: torch.Tensor, draw: Draw) -> torch.Tensor:
        scale = rows.abs().mean(1, keepdim=True).to(SCALE)
        return torch.cat([as_bytes(scale), pack((rows >= 0).view(torch.uint8), 1)], dim=1)

    def add_decoded_rows(self, codes: torch.Tensor, rows: torch.Tensor, alpha: float) -> None:
        scale = as_numbers(codes[:, : SCALE.itemsize], SCALE).float()
        signs = unpack(codes[:, SCALE.itemsize :], 1, rows.shape[1]).float().mul_(2).sub_(1)
        rows.addcmul_(signs, scale.mul_(alpha))
