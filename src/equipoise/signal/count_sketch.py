"""A count sketch of a gradient that is a sum of outer products, without materializing it (a tensor sketch)."""

from __future__ import annotations

import torch

from .convolution import ConvolutionFactors
from .layer_factors import EmbeddingFactors, ExampleGradients, LayerFactors, LinearFactors, hashed_tokens


class CountSketch:
    """Every coordinate goes to one of `buckets` with a random sign; outer products by fast Fourier transforms.

        sketch(b a') = sketch(b) * sketch(a)      *: circular convolution; the bucket of (j, k) is the sum of both

    Inner products are unbiased, with a variance of at most 11 / buckets of the squared norms. All layers share the
    buckets. Functions of seed, layer and shape alone: the same on every worker and after every resume.

    Reference: Pham and Pagh, Fast and Scalable Polynomial Kernels via Explicit Feature Maps, KDD 2013.
    """

    def __init__(self, seed: int, buckets: int):
        self.seed, self.buckets = seed, buckets
        self.hashes: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def buckets_and_signs(
        self, number: int, side: int, rows: int, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bucket and sign of every coordinate."""
        key = (number, side, rows)
        if key not in self.hashes:
            generator = torch.Generator().manual_seed(hash((self.seed, *key)) % (1 << 62))
            buckets = torch.randint(self.buckets, (rows,), generator=generator)
            signs = 2.0 * torch.randint(2, (rows,), generator=generator) - 1
            self.hashes[key] = buckets.to(like.device), signs.to(like)
        return self.hashes[key]

    def _sketched(self, number: int, side: int, x: torch.Tensor) -> torch.Tensor:
        """[N, buckets] of [N, numbers]."""
        buckets, signs = self.buckets_and_signs(number, side, x.shape[1], x)
        # Coordinates first: entire rows are added, which is fast on a CPU.
        return x.new_zeros(self.buckets, len(x)).index_add_(0, buckets, (x * signs).T).T

    @torch.no_grad()
    def __call__(self, number: int, factors: LayerFactors) -> torch.Tensor:
        """[B, buckets] of one layer."""
        if isinstance(factors, ConvolutionFactors):
            factors = factors.materialize() if factors.groups > 1 else factors.linear()
        if isinstance(factors, ExampleGradients):
            return self._sketched(number, 0, factors.rows)
        assert isinstance(factors, (LinearFactors, EmbeddingFactors))
        count, t, q = factors.b.shape
        if isinstance(factors, EmbeddingFactors):
            inputs = hashed_tokens(factors.a, self.seed, self.buckets, number).flatten(0, 1).to(factors.b)
        else:
            inputs = self._sketched(number, 0, factors.a.flatten(0, 1))
            if factors.weight is None:
                inputs.zero_()
            if factors.bias is not None:  # a weight whose input is 1
                bucket, sign = self.buckets_and_signs(number, 2, 1, factors.b)
                inputs[:, bucket] += sign
        outputs = self._sketched(number, 1, factors.b.reshape(count * t, q))
        spectrum = torch.fft.rfft(inputs) * torch.fft.rfft(outputs)
        sketch: torch.Tensor = torch.fft.irfft(spectrum.view(count, t, -1).sum(1), n=self.buckets)
        return sketch
