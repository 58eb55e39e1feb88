from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata, option
from .base import RESIDUAL, RESIDUALS, Draw, Piece
from .linear import Compression, LinearWire


@dataclass
class RandomK(LinearWire):
    """A random part of the elements, the same on all workers: k of d, no indices, messages that can be summed.

        m = s (e restricted to S),   |S| = k = round(keep d),   P(j in S) = k / d for every j

    The vector is a circle, cut into k arcs of equal length (to one element) from a random place on; S has one random
    element of each. So S costs k + 1 random numbers, and its elements are drawn without replacement.
    With error feedback s = 1, a contraction: E |m - e|^2 = (1 - k/d) |e|^2. With `feedback = 0` s = d / k, which is
    unbiased, E m = e, but no contraction: E |m - e|^2 = (d/k - 1) |e|^2.
    Stores the residual, sends 4 k bytes per message, in one all-reduce; S is drawn again by every worker, from the
    seed, on the CPU, so that it is the same on unlike devices.
    With error feedback, or with replicas, exact in the limit with every sync that takes it; `keep = 1` is float32.
    What is not drawn waits d / k rounds on average, so averages of models leave it in the worker's model meanwhile
    (`residual = "model"`); for gradients the learning rate may have to be smaller. A vector that is not
    finite makes all of its message so, whatever is drawn.

    Reference: Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, NeurIPS 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="random-k", help="random elements, the same on all workers: no indices", cites=("stich2018sparsified",)
    )

    keep: float = option(1 / 64, help="part of the elements that is sent", above=0, most=1)
    residual: str = option("model", help=RESIDUAL, choices=RESIDUALS)

    def lengths(self, elements: int, pieces: tuple[Piece, ...]) -> list[int]:
        return [min(elements, max(1, round(self.keep * elements)))]

    def compress(self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any) -> Compression:
        [k] = self.lengths(len(vector), pieces)
        kept = sample(k, len(vector), draw).to(vector.device)
        values = vector.index_select(0, kept)
        scale = len(vector) / k if k and self.feedback == 0 else 1.0
        yield values * scale
        vector.index_add_(0, kept, values, alpha=-scale)

    def expand(self, sums: list[torch.Tensor], out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw) -> None:
        kept = sample(len(sums[0]), len(out), draw).to(out.device)
        out.zero_().scatter_(0, kept, sums[0])


def sample(k: int, elements: int, draw: Draw) -> torch.Tensor:
    """k of the elements, one from each of k arcs; of `elements % k` arcs, which are longer by one, to begin with."""
    if not k:
        return torch.empty(0, dtype=torch.int64)
    source = draw.generator(torch.device("cpu"), shared=True)
    length, longer = divmod(elements, k)
    turn = torch.randint(elements, (1,), generator=source)
    places = torch.cat(
        [
            torch.randint(length + 1, (longer,), generator=source),
            torch.randint(length, (k - longer,), generator=source),
        ]
    )
    arcs = torch.arange(k)
    return places.add_(arcs, alpha=length).add_(arcs.clamp_(max=longer)).add_(turn).remainder_(elements)
