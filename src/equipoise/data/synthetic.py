"""Synthetic data of any size: a Gaussian mixture to classify, or a linear teacher to regress on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.memory import require_memory
from ..core.method import Metadata, option
from .base import Data, LoadedData, examples


@dataclass
class Synthetic(Data):
    """Inputs [features] float32, drawn from the seed alone.

    "classify": class means on the unit sphere, examples around them with deviation `noise`, classes equally
    frequent. "regress": inputs N(0, 1), target [1] float32: inputs times a unit vector plus N(0, noise^2), so
    that noise^2 is the least possible mean squared error.
    """

    metadata: ClassVar[Metadata] = Metadata(name="synthetic", help="synthetic regression or classification")

    kind: str = option("classify", help="the task", choices=("classify", "regress"))
    examples: int = option(2000, help="examples, training and test together", least=2)
    features: int = option(20, help="numbers in an input", least=1)
    classes: int = option(4, help="classes, for classify", least=2)
    noise: float = option(0.5, help="standard deviation of the noise", least=0, most=1e6)
    test: float = option(0.2, help="fraction of the examples that is held out for testing", above=0, below=1)
    seed: int = option(0, help="seed of everything random", least=0)

    def load(self) -> LoadedData:
        numbers = (3.0 * self.examples + self.classes) * self.features
        require_memory(
            8 * numbers, f"{self.examples:,} examples of {self.features:,} numbers in {self.classes:,} classes"
        )
        rng = np.random.default_rng(self.seed)
        classify = self.kind == "classify"
        directions = rng.standard_normal((self.classes if classify else 1, self.features))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        if classify:
            y = rng.permutation(self.examples) % self.classes
            x = directions[y] + self.noise * rng.standard_normal((self.examples, self.features))
        else:
            x = rng.standard_normal((self.examples, self.features))
            y = (x @ directions.T + self.noise * rng.standard_normal((self.examples, 1))).astype(np.float32)
        x = x.astype(np.float32)
        # Examples are independent, so the last ones are as good a test part as any.
        cut = min(self.examples - 1, max(1, round(self.examples * (1 - self.test))))
        return LoadedData(
            train=examples(x[:cut], y[:cut], "synthetic"),
            test=examples(x[cut:], y[cut:], "synthetic"),
            task="classify" if classify else "regress",
            outputs=self.classes if classify else 1,
            shape=(self.features,),
        )
