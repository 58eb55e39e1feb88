"""Adaptive local batch sizes: the norm test between workers."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import equipoise as eq

from ..core.progress_bar import tracked
from ..loop.lr_schedule import LRSchedule
from ..observe.events import read_events
from .runs import images, mean


def noise(dimension: int, examples: int, tests: int) -> dict[str, float]:
    """Gradients of pure noise: the batch that a test requests, relative to the batch it tested."""
    return {
        f"eta {eta:g}: size asked for / size tested": _growth(eta, dimension, examples, tests)
        for eta in (0.5, 0.7, 1.4)
    }


def _growth(eta: float, dimension: int, examples: int, tests: int) -> float:
    x = torch.randn(examples, dimension, generator=torch.Generator().manual_seed(0))
    x -= x.mean(0)  # the gradient of all examples is zero
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        eq.train(
            nn.Linear(dimension, 1, bias=False),
            lambda outputs, _: outputs.mean(),
            (x, torch.zeros(examples)),
            test=(x[:1], torch.zeros(1)),
            optimizer=lambda p: torch.optim.SGD(p, lr=1e-6),
            workers=4,
            steps=tests,
            batch=eq.batch.NormTest(start=8, growth=1.01, eta=eta),
            evaluate_every=10**6,
            out=out,
        )
        growth: list[float] = [e["wanted"] / sum(e["old"]) for e in read_events(out) if e["event"] == "batch"]
    return statistics.median(growth)


def quality(epochs: int, small: int, large: int, lr: float, seeds: int, model: str, **of: Any) -> dict[str, float]:
    """The same number of samples with a small, an adaptive and a large batch; a round every four steps.

    Cosine schedule, as in the paper. Our variants: the debiased test, and a budget of a third of the rounds.
    """
    data = images(**of)
    debiased: dict[str, Any] = {"debias": True, "smoothing": 0.9, "growth": 1.15}
    rules = {
        "small": eq.batch.Fixed(small),
        "norm test": eq.batch.NormTest(start=small, most=large),
        "debiased": eq.batch.NormTest(start=small, most=large, eta=3.0, **debiased),
        "annealed": eq.batch.Annealed(start=small, rounds=1 / 3),
        "large": eq.batch.Fixed(large),
    }
    accuracy, rounds = {}, {}
    how: dict[str, Any] = {"workers": 4, "epochs": epochs, "period": 4, "lr": lr, "momentum": 0.9, "model": model}
    how["scheduler"] = partial(LRSchedule, kind="cosine", warmup=0.1)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in rules}
    for name, seed in tracked("runs", [*itertools.product(rules, range(seeds))]):
        results[name].append(data.train_with(batch=rules[name], seed=seed, **how).result)
    for name, runs in results.items():
        accuracy[name] = 100 * mean(run["models"]["mean"]["accuracy"] for run in runs)
        rounds[name] = mean(run["rounds"] for run in runs)
    quantities: dict[str, float] = {}
    for name, words in {
        "norm test": "norm test",
        "debiased": "debiased test (ours)",
        "annealed": "annealed, a third of the rounds (ours)",
    }.items():
        quantities[f"rounds, {words} / small batch"] = rounds[name] / rounds["small"]
        lost, won = accuracy["small"] - accuracy[name], accuracy[name] - accuracy["large"]
        quantities[f"accuracy lost to the small batch, {words}, points"] = round(lost, 6) + 0.0
        quantities[f"accuracy won over the large batch, {words}, points"] = won
    return quantities | {"accuracy of the small batch, %": accuracy["small"]}


def floor(steps: int, lr: float, seeds: int) -> dict[str, float]:
    """Noisy least squares with a constant learning rate: the gap to the optimum after `steps` steps."""
    rules: dict[str, Callable[[], Any]] = {
        "constant": lambda: eq.batch.Fixed(4),
        "norm test": lambda: eq.batch.NormTest(start=4, most=1000),
    }
    gaps: dict[str, float] = {}
    batches: dict[str, float] = {}
    for name, rule in rules.items():
        ends = [_least_squares(rule(), steps, lr, seed) for seed in range(seeds)]
        gaps[name], batches[name] = mean(gap for gap, _ in ends), mean(batch for _, batch in ends)
    return {
        "gap of the loss, norm test / constant batch": gaps["norm test"] / gaps["constant"],
        "mean batch of a worker, norm test / constant": batches["norm test"] / batches["constant"],
    }


def _least_squares(rule: Any, steps: int, lr: float, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((8000, 10)))
    y = x @ torch.from_numpy(rng.standard_normal((10, 1))) + torch.from_numpy(rng.standard_normal((8000, 1)))
    best = torch.linalg.lstsq(x, y).solution
    run = eq.train(
        lambda: nn.Linear(10, 1, bias=False, dtype=torch.float64),
        nn.MSELoss(),
        (x, y),
        test=(x[:1], y[:1]),
        optimizer=lambda p: torch.optim.SGD(p, lr=lr),
        workers=4,
        steps=steps,
        period=4,
        batch=rule,
        seed=seed,
        evaluate_every=10**6,
    )
    with torch.no_grad():
        gap = float(((run.model(x) - y) ** 2).mean() - ((x @ best - y) ** 2).mean())
    return gap, run.result["samples"] / run.result["steps"] / 4
