from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .pack import as_bytes, as_numbers, packed_bytes, whole_bytes
from .rows import Parts, RandomSource, RowWire, few_rows, put_back, rows_of

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

    def encode_rows(
        self, vector: torch.Tensor, length: int, parts: Parts, source: RandomSource, *, subtract: bool
    ) -> list[torch.Tensor]:
        powers = vector.new_tensor([1, 2, 4, 8, 16, 32, 64, -128])  # the last bit is the sign of an int8
        codes = []
        for first, last in parts:
            scales, signs = [], []
            for flat in torch.split(vector[first * length : last * length], few_rows(length) * length):
                rows = rows_of(flat, length)
                magnitudes = rows.abs()
                scales.append(magnitudes.mean(1, keepdim=True).to(SCALE))
                positive = torch.ge(rows, 0, out=magnitudes)
                # A product of whole numbers of float32, which is exact.
                signs.append((powers @ whole_bytes(positive, 1).view(8, -1)).to(torch.int8).view(torch.uint8))
                if subtract:
                    put_back(rows.addcmul_(positive.mul_(2).sub_(1), scales[-1].float(), value=-1.0), flat)
            codes.append(torch.cat([*map(as_bytes, scales), *signs]))
        return codes

    def add_decoded_rows(self, codes: Sequence[torch.Tensor], vector: torch.Tensor, length: int, alpha: float) -> None:
        few, width = few_rows(length), packed_bytes(length, 1)
        size = -(-len(vector) // length) * SCALE.itemsize
        scales = [torch.split(as_numbers(code[:size], SCALE).float().mul_(alpha).unsqueeze(1), few) for code in codes]
        packed = [torch.split(code[size:], few * width) for code in codes]
        bits = (1 << torch.arange(8, device=vector.device)).to(torch.uint8).unsqueeze(1)
        for number, flat in enumerate(torch.split(vector, few * length)):
            rows = rows_of(flat, length)
            for s, signs in zip(scales, packed, strict=True):
                signed = (signs[number] & bits).clamp_(max=1).view(torch.int8).mul_(2).sub_(1).float()
                rows.addcmul_(signed.view(len(rows), -1)[:, :length], s[number])
            put_back(rows, flat)
