"""Shared by the experiments: image data, and runs on virtual workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import equipoise as eq

from ..config import registry
from ..data.base import LoadedData
from ..observe.events import read_events

LOSS = nn.CrossEntropyLoss()


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


@dataclass
class Images:
    data: LoadedData

    def make(self, model: str, seed: int, sized: dict[str, Any] | None = None) -> nn.Module:
        """A network for these images; the seed decides its initial weights."""
        torch.manual_seed(seed)
        network: nn.Module = registry.get("model", model)(**(sized or {})).build(self.data)
        return network

    def train_with(
        self,
        *,
        model: str,
        lr: float,
        momentum: float = 0.0,
        seed: int = 0,
        sized: dict[str, Any] | None = None,
        **how: Any,
    ) -> eq.Run:
        """A run whose seed decides the initial weights; evaluated at its end only."""
        nesterov = how.pop("nesterov", False)
        quiet = {"evaluate_every": 10**6, "log_every": 10**6, "checkpoint_every": 10**9}
        return eq.train(
            partial(self.make, model, seed, sized),
            LOSS,
            self.data.train,
            test=how.pop("test", self.data.test),
            optimizer=lambda p: torch.optim.SGD(p, lr=lr, momentum=momentum, nesterov=nesterov),
            seed=seed,
            **(quiet | how),
        )

    def curve(self, clock: str, **how: Any) -> list[tuple[float, float]]:
        """(time, loss of the mean model on a quarter of the training data) after every epoch."""
        train = self.data.train
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            self.train_with(test=(train.x[::4], train.y[::4]), evaluate_every=1, out=out, **how)
            evaluations = [e for e in read_events(out) if e["event"] == "evaluate"]
        return [(e[clock], e["models"]["mean"]["loss"]) for e in evaluations]

    @torch.no_grad()
    def training_loss(self, model: nn.Module) -> float:
        model.eval()
        train = self.data.train
        batches = zip(torch.split(train.x, 512), torch.split(train.y, 512), strict=True)
        return sum(float(LOSS(model(x), y)) * len(y) for x, y in batches) / len(train)


def images(data: str = "digits", data_dir: str = "", limit: int | None = None) -> Images:
    """The bundled digits, or CIFAR-10 from a folder."""
    options: dict[str, Any] = {"limit": limit}
    if data != "digits":
        options["dir"] = data_dir
    return Images(registry.get("data", data)(**options).load())


def time_to(curve: list[tuple[float, float]], target: float) -> float:
    """The time at which the loss first reaches the target, interpolated linearly; NaN if it never does."""
    previous = None
    for seconds, loss in curve:
        if loss <= target:
            if previous is None or previous[1] == loss:
                return seconds
            return previous[0] + (previous[1] - target) / (previous[1] - loss) * (seconds - previous[0])
        previous = (seconds, loss)
    return float("nan")
