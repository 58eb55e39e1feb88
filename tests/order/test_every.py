"""Orders that learn from some epochs only: the others visit what was learned, for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.order import CDGraB, GossipGraB, GraB, IDGraB, PairBalance

from .drive import bound, sphere, visit

LEARNERS = (CDGraB, GossipGraB, GraB, IDGraB, PairBalance)
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("sweeps", [1, 3])
def test_other_epochs_visit_the_learned_order_forwards_and_backwards(method: Any, sweeps: int) -> None:
    if method is GossipGraB and sweeps > 1:
        pytest.skip("it signs while gradients arrive")
    order, vectors = bound(method(signal="exact", every=4, sweeps=sweeps), 20), sphere(20, 3)
    epochs, learned = [], []
    for epoch in range(6):
        epochs.append(visit(order, vectors if epoch < 4 else sphere(20, 3, seed=9), epoch, 4).tolist())
        learned.append(order.learning)
    assert learned == [True, False, False, False, True, False]
    assert epochs[1] != epochs[0]
    assert epochs[2] == epochs[1][::-1]
    assert epochs[3] == epochs[1]
    assert epochs[4] == epochs[1][::-1]
    assert epochs[5] not in (epochs[4], epochs[4][::-1])


def test_a_short_group_stays_at_the_end() -> None:
    order, vectors = bound(PairBalance(signal="exact", every=3, group=4), 18), sphere(18, 3)
    epochs = [visit(order, vectors, epoch, 4) for epoch in range(3)]
    assert epochs[1][-2:].tolist() == epochs[2][-2:].tolist()
    groups = [epoch[:16].reshape(4, 4) for epoch in epochs[1:]]
    np.testing.assert_array_equal(groups[0], groups[1][::-1])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def trained(order: Any, epochs: int, **options: Any) -> dict[str, Any]:
    options = {"workers": 3, "batch": 4, "deterministic": True, **options}
    return eq.train(net, nn.CrossEntropyLoss(), (X, Y), order=order, epochs=epochs, **options).result


@pytest.mark.parametrize("options", [{}, {"signal": "last-layer"}, {"signal": "projection", "sweeps": 8}], ids=str)
def test_an_epoch_that_is_not_learned_from_sends_nothing(options: dict[str, Any]) -> None:
    """Beyond plain training. The messages of a learned epoch arrive, at the latest, when the next one begins."""
    plain = [trained(eq.order.Reshuffle(), epochs)["bytes"] for epochs in (2, 3, 6)]
    sent = [trained(CDGraB(every=5, **options), epochs)["bytes"] for epochs in (2, 3, 6)]
    extra = [a - b for a, b in zip(sent, plain, strict=True)]
    assert extra[0] > 0
    assert extra[0] == extra[1]
    assert (extra[2] > extra[1]) == ("sweeps" not in options)  # the sketches of epoch 5 are sent when epoch 6 begins


def test_the_signal_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    watching = eq.signal.Projection.watching

    def counted(self: Any, model: nn.Module, examples: int) -> Any:
        watched.append(examples)
        return watching(self, model, examples)

    monkeypatch.setattr(eq.signal.Projection, "watching", counted)
    trained(PairBalance(signal="projection", every=3), 4, workers=1, batch=10)
    assert len(watched) == 2 * 6


@pytest.mark.parametrize("steps", [3, 7, 12, 22])
def test_stopped_in_any_epoch_and_resumed(steps: int, tmp_path: Path) -> None:
    """Five steps per epoch, of which one in three is learned from; processes give the bits of virtual workers."""
    order = CDGraB(signal="projection", every=3, sweeps=4)
    undisturbed = trained(order, 6)["params_sha256"]
    trained(order, None, steps=steps, out=tmp_path)  # type: ignore[arg-type]
    assert trained(order, 6, out=tmp_path, resume=True)["params_sha256"] == undisturbed
    if steps == 3:
        assert trained(order, 6, virtual=False)["params_sha256"] == undisturbed


def test_own_loop_needs_no_watching_in_such_an_epoch() -> None:
    """`watching` may stay where it is, and costs nothing; it may be left out, too."""
    sampler, model = eq.Sampler((X, Y), order=PairBalance(signal="projection", every=3, sweeps=4), batch=10), net()
    for epoch in range(4):
        for batch in sampler:
            if sampler.order.learning:
                with sampler.watching(model):
                    nn.functional.cross_entropy(model(X[batch]), Y[batch]).backward()
            elif epoch == 1:
                with sampler.watching(model):
                    pass
    assert sampler.order.learning
