"""CD-GraB with uneven blocks and batches: every epoch stays a permutation, and the order stays balanced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.order import CDGraB, factor_messages
from equipoise.order.balanced_order import BalancedOrder

EXAMPLES, EPOCHS = 61, 3
X = torch.randn(EXAMPLES, 6, generator=torch.Generator().manual_seed(4))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)

MODES = {
    "rows": {"signal": "exact", "coordinate": "auto"},
    "factors": {"signal": "exact", "coordinate": "factors"},
    "shards": {"signal": "exact", "coordinate": "shards"},
    "stale": {"signal": "exact", "coordinate": "stale"},
    "projection": {"signal": "projection", "every": 1, "sweeps": 1},
    "last layer": {"signal": "last-layer", "every": 1, "sweeps": 1},
    "kept": {"signal": "projection", "every": 2, "sweeps": 4},
    "kept groups": {"signal": "projection", "group": 3, "sweeps": 4},
    "groups": {"signal": "exact", "group": 3},
    "batches": {"signal": "batch", "group": 3},
}
UNEVEN: dict[str, dict[str, Any]] = {
    "odd blocks and short batches": {"batch": 5},
    "batches of one": {"batch": 1},
    "drop_last": {"batch": 6, "drop_last": True},
    "accumulation": {"batch": 7, "micro": 3},
    "unequal workers": {"batch": 5, "partition": eq.partition.IID(speeds=[1, 6, 2])},
    "more workers than batches": {"batch": 40},
}


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.LayerNorm(10), nn.Linear(10, 3))


def trained(order: CDGraB, lr: float = 0.1, **changes: Any) -> dict[str, Any]:
    options = {"workers": 3, "epochs": EPOCHS, "deterministic": True, "order": order, **changes}
    sgd = lambda p: torch.optim.SGD(p, lr=lr)  # noqa: E731
    return eq.train(net, nn.CrossEntropyLoss(), (X, Y), optimizer=sgd, **options).result


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int, list[int]]]]:
    """Examples, number and order of every epoch that any worker begins, checked to be permutations."""
    begun: list[tuple[int, int, list[int]]] = []
    asked = BalancedOrder.epoch

    def epoch(self: BalancedOrder, number: int) -> np.ndarray:
        order = asked(self, number)
        begun.append((self.context.worker.examples, number, order.tolist()))
        return order

    monkeypatch.setattr(BalancedOrder, "epoch", epoch)
    monkeypatch.setattr(factor_messages, "_SMALL", 0)
    yield begun
    assert begun
    for examples, _, order in begun:
        assert sorted(order) == list(range(examples))


@pytest.mark.parametrize("mode", MODES)
def test_always_a_permutation(mode: str, epochs: list[Any]) -> None:
    for case, uneven in UNEVEN.items():
        options = {**uneven, "micro": 3} if mode == "batches" else uneven  # a pass is a group
        epochs.clear()
        result = trained(CDGraB(**MODES[mode]), **options, epochs=2)
        assert {number for _, number, _ in epochs} >= {0, 1}, case
        for examples, _, order in epochs:
            assert sorted(order) == list(range(examples)), case
        taken = 3 * 3 * 6 if case == "drop_last" else EXAMPLES  # 3 workers, 3 complete batches of 6
        assert result["samples"] == 2 * taken, case


@pytest.mark.parametrize("case", [case for case in UNEVEN if case != "more workers than batches"])
def test_the_balance_stays_sensible(case: str, epochs: list[Any]) -> None:
    """Gradients that do not move: prefixes fall well below a random order's, whatever is uneven."""
    result = trained(CDGraB(signal="last-layer"), lr=0.0, **{**UNEVEN[case], "epochs": 8})
    assert result["health"]["herding"] < 0.8


@pytest.mark.parametrize("mode", ["rows", "factors", "shards", "projection", "kept"])
def test_stopped_anywhere_and_resumed(mode: str, epochs: list[Any], tmp_path: Path) -> None:
    """Inside the first and second epoch, on as many workers: the same bits. On fewer: every example once per epoch."""
    order, uneven = CDGraB(**MODES[mode]), {"batch": 5, "partition": eq.partition.IID(speeds=[1, 2, 1])}
    undisturbed = trained(order, **uneven)
    trained(order, **uneven, epochs=None, steps=5, out=tmp_path / "a")
    trained(order, **uneven, epochs=None, steps=10, out=tmp_path / "a", resume=True)
    again = trained(order, **uneven, out=tmp_path / "a", resume=True)
    assert again["params_sha256"] == undisturbed["params_sha256"]
    trained(order, batch=5, epochs=None, steps=8, out=tmp_path / "b")
    fewer = trained(order, batch=5, workers=2, out=tmp_path / "b", resume=True)
    assert fewer["samples"] == EPOCHS * EXAMPLES


def test_own_loop_cut_short_and_iterated_twice(epochs: list[Any]) -> None:
    """All workers leave an epoch early; two iterators share one; examples without a sign go to the middle."""

    def loop(comm: Any) -> list[int]:
        sampler = eq.Sampler((X, Y), order=CDGraB(signal="exact", coordinate="factors"), batch=4)
        model = net()

        def take(batches: Any, count: int | None = None) -> list[int]:
            visited: list[int] = []
            for number, batch in enumerate(batches, 1):
                with sampler.watching(model):
                    nn.functional.cross_entropy(model(X[batch]), Y[batch]).backward()
                visited += batch
                if number == count:
                    break
            return visited

        take(sampler)
        take(sampler, 3)
        rest = take(sampler)
        first = take(sampler, 2)
        again = take(iter(sampler))
        assert len(rest) + 12 == len(first) + len(again) == len(sampler.position.block)
        return sorted(first + again)

    taken = eq.spawn(loop, 3, virtual=True)
    assert sorted(i for visited in taken for i in visited) == list(range(EXAMPLES))
