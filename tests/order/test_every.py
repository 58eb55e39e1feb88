"""Orders that learn from some epochs only: the others visit what was learned, for nothing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.order import CDGraB, GossipGraB, GraB, IDGraB, PairBalance

from .drive import bound, largest_prefix, sphere, visit

LEARNERS = (CDGraB, GossipGraB, GraB, IDGraB, PairBalance)
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.mark.parametrize("method", LEARNERS)
def test_other_epochs_visit_a_streamed_order_forwards_and_backwards(method: Any) -> None:
    order, vectors = bound(method(signal="exact", every=4), 20), sphere(20, 3)
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


@pytest.mark.parametrize("method", [CDGraB, GraB, IDGraB, PairBalance])
def test_other_epochs_are_balanced_from_kept_vectors(method: Any) -> None:
    """As well as the first of them, without new gradients, and with other batches."""
    order, vectors = bound(method(signal="projection", every=5, sweeps=8), 512), sphere(512, 8)
    epochs, learned = [], []
    for epoch in range(7):
        epochs.append(visit(order, vectors if epoch < 5 else sphere(512, 8, seed=9), epoch, 4))
        learned.append(order.learning)
    assert learned == [True, False, False, False, False, True, False]
    prefixes = [largest_prefix(vectors[torch.from_numpy(positions)]) for positions in epochs]
    assert prefixes[0] > 9
    assert max(prefixes[1:6]) < 4.5, prefixes
    batches = [{frozenset(batch) for batch in positions.reshape(-1, 4).tolist()} for positions in epochs]
    assert all(len(a & b) < 6 for a, b in itertools.combinations(batches, 2))
    assert all(sorted(positions) == list(range(512)) for positions in epochs)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_order_learns_as_often_as_gradients_change(workers: int) -> None:
    """Vectors that stay: the interval doubles up to eight epochs. Other ones in every epoch: it falls to one."""

    def learned(comm: Any, moves: range) -> list[int]:
        order, found = bound(CDGraB(), 256, comm), []
        for epoch in range(60):
            if order.builder.learning:
                found.append(epoch)
            seed = epoch + 1 if epoch in moves else 0
            visit(order, sphere(256, 8, seed=100 * seed + comm.rank), epoch, 4)
            if epoch == 20:  # a resumed run goes on in the same rhythm
                state, order = order.state_dict(), bound(CDGraB(), 256, comm)
                order.epoch(0)
                order.load_state_dict(state)
            order.epoch(epoch + 1)
        return found

    for found in eq.spawn(lambda comm: learned(comm, range(0)), workers, virtual=True):
        assert found == [0, 1, 3, 7, 15, 23, 31, 39, 47, 55]
    for found in eq.spawn(lambda comm: learned(comm, range(30, 60)), workers, virtual=True):
        assert found == [0, 1, 3, 7, 15, 23, 31, 35, 37, *range(38, 60)]


@pytest.mark.parametrize(
    ("numbers", "found"), [(2_000, [0, 8, 16]), (15_400, [0, 4, 8, 12, 16]), (62_000, [*range(20)])]
)
def test_sketches_are_few_compared_with_what_rank_0_sends(numbers: int, found: list[int]) -> None:
    """Gradients that change ask for every epoch. Rank 0 receives 2 x 256 x 8 doubles in a learned one and sends 4/3 of
    the `numbers` of a mean over 3 workers: with k epochs between, a tenth of these is enough from 61,440 / k on.
    """

    def learned(comm: Any) -> list[int]:
        order, found = bound(CDGraB(), 256, comm), []
        for epoch in range(20):
            if order.builder.learning:
                found.append(epoch)
            visit(order, sphere(256, 8, seed=100 * epoch + comm.rank), epoch, 4)
            comm.mean(torch.zeros(numbers))
            if epoch == 4:  # a resumed run knows what has been sent since the last learned epoch
                state, order = order.state_dict(), bound(CDGraB(), 256, comm)
                order.epoch(0)
                order.load_state_dict(state)
            order.epoch(epoch + 1)
        return found

    assert eq.spawn(learned, 3, virtual=True) == [found] * 3


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, ("last-layer", 0, 8)),
        ({"every": 1}, ("last-layer", 1, 8)),
        ({"sweeps": 1}, ("exact", 1, 1)),
        ({"signal": "projection"}, ("projection", 0, 8)),
        ({"signal": "projection", "sweeps": 1}, ("projection", 1, 1)),
        ({"signal": "exact"}, ("exact", 1, 1)),
        ({"signal": "batch", "group": 4}, ("batch", 1, 1)),
        ({"coordinate": "stale"}, ("exact", 1, 1)),
        ({"coordinate": "stale", "signal": "last-layer", "every": 2}, ("last-layer", 2, 1)),
    ],
    ids=str,
)
def test_what_options_that_are_left_out_mean(options: dict[str, Any], chosen: tuple[str, int, int]) -> None:
    assert CDGraB(**options).chosen == chosen
    assert GossipGraB().chosen == ("exact", 1, 1)


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


OPTIONS: list[dict[str, Any]] = [{"signal": "exact"}, {"signal": "last-layer", "sweeps": 1}, {}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_epoch_that_is_not_learned_from_sends_nothing(options: dict[str, Any]) -> None:
    """Beyond plain training. The messages of a learned epoch arrive, at the latest, when the next one begins."""
    plain = [trained(eq.order.Reshuffle(), epochs)["bytes"] for epochs in (2, 3, 6)]
    sent = [trained(CDGraB(every=5, **options), epochs)["bytes"] for epochs in (2, 3, 6)]
    extra = [a - b for a, b in zip(sent, plain, strict=True)]
    assert extra[0] > 0
    assert extra[0] == extra[1]
    assert (extra[2] > extra[1]) == bool(options)  # the sketches of epoch 5 are sent when epoch 6 begins


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
    """Five steps per epoch, and one epoch in three is learned from; processes give the bits of virtual workers."""
    order = CDGraB(every=3)
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
