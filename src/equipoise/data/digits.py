"""Handwritten digits, 8 x 8, bundled with scikit-learn: a data set that needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.extras import require
from ..core.method import Metadata, option
from .base import Data, LoadedData, examples
from .split import held_out_mask


@dataclass
class Digits(Data):
    """1,797 digits; inputs [1, 8, 8] float32 in 0..1, ten classes.

    The split is stratified: the test part has the same fraction of every class. Source: scikit-learn's
    `load_digits`, the test part of "Optical Recognition of Handwritten Digits" (UCI).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="digits",
        help="1,797 handwritten digits, 8 x 8, bundled with scikit-learn",
        cites=("alpaydin1998cascading",),
    )

    test: float = option(0.2, help="fraction of every class that is held out for testing", above=0, below=1)
    seed: int = option(0, help="seed of the split", least=0)
    limit: int | None = option(None, help="keep only this many training examples, the first ones", least=1)

    def load(self) -> LoadedData:
        bunch = require("sklearn.datasets", "digits", "the digits data set").load_digits()
        x = (bunch.images / 16).astype(np.float32)[:, None]
        y = bunch.target.astype(np.int64)
        is_test = held_out_mask(len(y), self.test, self.seed, y)
        source = f"Digits(test={self.test})"
        return LoadedData(
            train=examples(x[~is_test], y[~is_test], source, self.limit),
            test=examples(x[is_test], y[is_test], source),
            task="classify",
            outputs=10,
            shape=(1, 8, 8),
            notes={"files": ["bundled with scikit-learn"]},
        )
