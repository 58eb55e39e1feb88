"""Nothing follows torch's default dtype, which a user's script may have set for something else: the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.config import registry
from equipoise.testing import toy as problem

from . import toy

SIGNALS = [
    pytest.param(lambda folder, s=signal, m=sweeps: eq.order.CDGraB(signal=s, sweeps=m), id=f"{signal}-{sweeps}")
    for signal, sweeps in (("exact", 1), ("forward", 1), ("projection", 1), ("count-sketch", 8), ("last-layer", 8))
]
METHODS = [
    pytest.param(lambda folder, a=axis, n=name: toy.make(a, n, folder), id=name)
    for axis in ("order", "wire")
    for name in registry.names(axis)
]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("make", SIGNALS + METHODS)
def test_a_model_of_float32_trains_alike(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, ends = problem.model, []

    def model() -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            return build()
        finally:
            torch.set_default_dtype(before)

    monkeypatch.setattr(problem, "model", model)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        result = toy.train(make(tmp_path)).result
        ends.append((result["params_sha256"], result["bytes"]))
    assert ends[0] == ends[1]
