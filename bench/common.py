"""Shared by the benchmarks: the model, interleaved medians, one table, `--json FILE`."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


def mlp() -> nn.Module:
    """1,017,540 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 230), nn.ReLU(), nn.Linear(230, 10))


def images(examples: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(examples, 784, generator=generator), torch.randint(10, (examples,), generator=generator)


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(candidates: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each candidate, measured in turn so that drift affects all alike; the first turn is a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repetitions + 1):
        for name, function in candidates.items():
            spent = timed(function)
            if turn:
                seconds[name].append(spent)
    return seconds


def report(title: str, rows: list[tuple[str, float, float | None]], json_path: str | None) -> None:
    """`rows`: name of the ratio, its value, the goal it must not exceed (None: for information)."""
    print(f"\n{title}")
    for name, value, goal in rows:
        verdict = "" if goal is None else f"   goal at most {goal:g}: {'met' if value <= goal else 'MISSED'}"
        print(f"  {name:<68} {value:8.3f}{verdict}")
    if json_path:
        Path(json_path).write_text(json.dumps({name: round(value, 4) for name, value, _ in rows}, indent=1) + "\n")


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of neighbouring measurements: robust against a machine whose speed drifts."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def arguments(description: str, **defaults: int | str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()
