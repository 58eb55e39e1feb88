"""Handwritten digits, 8 x 8, bundled with scikit-learn: the data set that is always there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from .base import Data, LoadedData, examples


@dataclass
class Digits(Data):
    """1,797 digits; inputs [1, 8, 8] float32 in 0..1, ten classes.

    The split is stratified: every class gives the same share to the test part. Source: scikit-learn's
    `load_digits`, the test part of "Optical Recognition of Handwritten Digits" (UCI).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="digits",
        help="1,797 handwritten digits, 8 x 8, bundled with scikit-learn",
        cites=("alpaydin1998cascading",),
    )

    test: float = option(0.2, help="share of every class that is the test part", above=0, below=1)
    seed: int = option(0, help="seed of the split", least=0)
    limit: int | None = option(None, help="keep only the first so many training examples", least=1)

    def load(self) -> LoadedData:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x = (bunch.images / 16).astype(np.float32)[:, None]
        y = bunch.target.astype(np.int64)
        # Our own split: scikit-learn does not promise the same one in its next version.
        rng = np.random.default_rng(self.seed)
        chosen = np.zeros(len(y), bool)
        for label in range(10):
            members = rng.permutation(np.flatnonzero(y == label))
            chosen[members[: round(self.test * len(members))]] = True
        source = f"Digits(test={self.test})"
        return LoadedData(
            train=examples(x[~chosen], y[~chosen], source, self.limit),
            test=examples(x[chosen], y[chosen], source),
            task="classify",
            outputs=10,
            shape=(1, 8, 8),
            notes={"files": ["bundled with scikit-learn"]},
        )
