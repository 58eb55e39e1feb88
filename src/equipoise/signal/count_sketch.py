"""A count sketch of a gradient that is a sum of products, without making it (a tensor sketch)."""

from __future__ import annotations

import torch

from .convolution import Convolved
from .factors_of_layer import Lookup, Made, Outer, Part, hashed_words


class CountSketch:
    """Every coordinate goes to one of `buckets` with a random sign; for products of vectors by fast Fourier transforms.

        sketch(b a') = sketch(b) * sketch(a)      *: circular convolution; the bucket of (j, k) is the sum of both

    Products are kept on average, with a variance of at most 11 / buckets of the squared norms. All layers go to the same
    buckets. Functions of seed, layer and shape alone: the same on every worker and after every resume.

    Reference: Pham and Pagh, Fast and Scalable Polynomial Kernels via Explicit Feature Maps, KDD 2013.
    """

    def __init__(self, seed: int, buckets: int):
        self.seed, self.buckets = seed, buckets
        self.drawn: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def hashed(self, number: int, side: int, rows: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bucket and sign of every coordinate."""
        key = (number, side, rows)
        if key not in self.drawn:
            generator = torch.Generator().manual_seed(hash((self.seed, *key)) % (1 << 62))
            buckets = torch.randint(self.buckets, (rows,), generator=generator)
            signs = 2.0 * torch.randint(2, (rows,), generator=generator) - 1
            self.drawn[key] = buckets.to(like.device), signs.to(like)
        return self.drawn[key]

    def _counted(self, number: int, side: int, x: torch.Tensor) -> torch.Tensor:
        """[N, buckets] of [N, numbers]."""
        buckets, signs = self.hashed(number, side, x.shape[1], x)
        # Coordinates first: whole rows are added, which is what a CPU does fast.
        return x.new_zeros(self.buckets, len(x)).index_add_(0, buckets, (x * signs).T).T

    @torch.no_grad()
    def __call__(self, number: int, part: Part) -> torch.Tensor:
        """[B, buckets] of one layer."""
        if isinstance(part, Convolved):
            part = part.made() if part.groups > 1 else part.outer()
        if isinstance(part, Made):
            return self._counted(number, 0, part.rows)
        assert isinstance(part, (Outer, Lookup))
        count, t, q = part.b.shape
        if isinstance(part, Lookup):
            inputs = hashed_words(part.a, self.seed, self.buckets, number).flatten(0, 1).to(part.b)
        else:
            inputs = self._counted(number, 0, part.a.flatten(0, 1))
            if part.weight is None:
                inputs.zero_()
            if part.bias is not None:  # a weight whose input is 1
                bucket, sign = self.hashed(number, 2, 1, part.b)
                inputs[:, bucket] += sign
        outputs = self._counted(number, 1, part.b.reshape(count * t, q))
        spectrum = torch.fft.rfft(inputs) * torch.fft.rfft(outputs)
        return torch.fft.irfft(spectrum.view(count, t, -1).sum(1), n=self.buckets)
