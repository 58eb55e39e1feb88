"""Features of the user's own, and those of the model after the first epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.data.features import feature_array
from equipoise.data.source import Source
from equipoise.data.view import DatasetView
from equipoise.loop import worker as worker_module

# Two groups within each class, which a trained network tells apart by what decides the class.
X = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def train(partition: Any, *, epochs: float = 3, **changes: Any) -> eq.Run:
    options = {"workers": 3, "batch": eq.batch.Proportional(8), "deterministic": True, "log_every": 1, **changes}
    optimizer = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
    return eq.train(
        model, nn.CrossEntropyLoss(), (X, Y), epochs=epochs, partition=partition, optimizer=optimizer, **options
    )


LEARNED = eq.partition.Submodular(speeds=[1.0, 2.0, 3.0], features="model", objective="herding")


def test_after_the_first_epoch_blocks_follow_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visits: dict[tuple[int, int], list[int]] = {}
    step = worker_module.Worker.step

    def spied(self: Any) -> float:
        loss = step(self)
        visits.setdefault((self.clock.epoch, self.comm.rank), []).extend(self.indices.tolist())
        return loss

    monkeypatch.setattr(worker_module.Worker, "step", spied)
    run = train(LEARNED, out=tmp_path / "run", evaluate_every=1)
    for epoch in range(3):
        seen = Counter(i for rank in range(3) for i in visits[epoch, rank])
        assert seen == Counter(range(240)), "every example once, before and after"
    blocks = [[sorted(visits[epoch, rank]) for rank in range(3)] for epoch in range(3)]
    assert blocks[0] != blocks[1]
    assert blocks[1] == blocks[2]
    assert [len(b) for b in blocks[0]] == [len(b) for b in blocks[1]] == [40, 80, 120]
    # The blocks are those that the mean model after one epoch gives.
    one = train(eq.partition.Stratified(speeds=[1.0, 2.0, 3.0]), epochs=1).model
    plain = eq.partition.Submodular(
        speeds=[40.0, 80.0, 120.0], objective="herding", features=eq.features.penultimate(one)
    )
    assert [sorted(b.tolist()) for b in plain.blocks(Source((X, Y)).view(), 3, 0)] == blocks[1]
    (event,) = [e for e in run.events if e["event"] == "partition"]
    assert event["mmd2_ratio"] < 0.5 < event["mmd2_ratio_before"]


def test_a_run_resumes_with_the_blocks_of_the_model(tmp_path: Path) -> None:
    undisturbed = train(LEARNED).result["params_sha256"]
    saved: dict[str, Any] = {"checkpoint_every": 7, "keep": 9, "out": tmp_path / "run"}
    train(LEARNED, **saved)
    for stop in (7, 21):  # within the first epoch, and within the third
        assert train(LEARNED, **saved, resume=stop).result["params_sha256"] == undisturbed


def test_processes_give_the_same_bits() -> None:
    results = [train(LEARNED, epochs=2, virtual=virtual).result["params_sha256"] for virtual in (True, False)]
    assert results[0] == results[1]


def first_two(view: DatasetView) -> np.ndarray:
    """A function of the user's own, by its name."""
    return np.asarray(view.data[0])[:, :2]


def test_features_by_the_name_of_a_function() -> None:
    view = Source((X, Y)).view()
    named = feature_array(view, f"{__name__}:first_two")
    assert np.array_equal(named, X[:, :2].numpy())
    by_name = eq.partition.Submodular(features=f"{__name__}:first_two").blocks(view, 3, 0)
    by_array = eq.partition.Submodular(features=X[:, :2]).blocks(view, 3, 0)
    assert all(np.array_equal(a, b) for a, b in zip(by_name, by_array, strict=True))


def test_what_cannot_follow_a_model_is_refused() -> None:
    with pytest.raises(UserError, match="penultimate"):
        LEARNED.divide(X.numpy(), Y.numpy())
    with pytest.raises(UserError, match="remeasure"):
        eq.partition.Submodular(speeds="measured", remeasure=1, features="model")
    with pytest.raises(UserError, match="after the first epoch"):
        train(LEARNED, order=eq.order.GraB())
    with pytest.raises(UserError, match="eq.train"):
        eq.spawn(lambda comm: eq.Sampler((X, Y), partition=LEARNED), 3, virtual=True)
