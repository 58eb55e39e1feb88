"""A balanced order in a user's own loop: one line for the sampler, one context manager for the signal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.core.finite import first_not_finite

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)


def loop(sampler: eq.Sampler, epochs: int, accumulate: int = 1, workers: int = 0, stop: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    model, loss = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), batch_sampler=sampler, num_workers=workers)
    for epoch in range(epochs):
        for number, (x, y) in enumerate(loader):
            with sampler.watching(model):
                loss(model(x), y).backward()
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            if epoch == stop and number == 2:
                break
    return model


@pytest.mark.parametrize("signal", ["exact", "projection", "last-layer"])
def test_the_same_model_as_eq_train(signal: str) -> None:
    order = eq.order.PairBalance(signal=signal)
    mine = loop(eq.Sampler((X, Y), order=order, batch=8), 4)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    run = eq.train(net, nn.CrossEntropyLoss(), (X, Y), order=order, batch=8, epochs=4)
    for a, b in zip(mine.parameters(), run.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_accumulated_gradients_and_batches_drawn_ahead_change_no_order() -> None:
    """The model does not move in the first epoch, so the second order must be the same however the loop is written."""
    orders = []
    for accumulate, workers in ((1000, 0), (1000, 2)):
        sampler = eq.Sampler((X, Y), order=eq.order.PairBalance(signal="exact"), batch=8)
        loop(sampler, 1, accumulate, workers)
        orders.append(sampler.order.epoch(1).tolist())
    assert orders[0] == orders[1]
    assert orders[0] != eq.Sampler((X, Y), order=eq.order.PairBalance(signal="exact"), batch=8).order.epoch(0).tolist()


def test_an_early_stop_and_a_pass_without_watching_keep_a_permutation() -> None:
    sampler = eq.Sampler((X, Y), order=eq.order.PairBalance(signal="exact"), batch=8)
    loop(sampler, 3, stop=1)
    for _ in range(4):
        assert sorted(i for batch in sampler for i in batch) == list(range(50))


def test_two_iterators_share_the_epoch() -> None:
    sampler = eq.Sampler((X, Y), order=eq.order.PairBalance(signal="exact"), batch=8)
    first = iter(sampler)
    drawn = next(first) + next(first)
    rest = [i for batch in sampler for i in batch]
    assert sorted(drawn + rest) == list(range(50))


def test_resume_in_the_middle_of_an_epoch() -> None:
    order = eq.order.PairBalance(signal="exact")
    undisturbed = eq.Sampler((X, Y), order=order, batch=7)
    half = eq.Sampler((X, Y), order=order, batch=7)
    torch.manual_seed(0)
    model = nn.Linear(6, 3)

    def epoch(sampler: eq.Sampler, batches: int | None = None) -> None:
        for number, batch in enumerate(sampler, 1):
            with sampler.watching(model):
                nn.functional.cross_entropy(model(X[batch]), Y[batch]).backward()
            if number == batches:
                break

    epoch(undisturbed)
    epoch(undisturbed)
    epoch(half)
    epoch(half, 3)
    state = half.state_dict(finished=3)
    resumed = eq.Sampler((X, Y), order=order, batch=7)
    resumed.load_state_dict(state)
    epoch(resumed)
    assert resumed.order.epoch(2).tolist() == undisturbed.order.epoch(2).tolist()
    assert sorted(np.asarray(resumed.order.epoch(2)).tolist()) == list(range(50))


def test_watching_outside_the_loop_is_refused() -> None:
    sampler = eq.Sampler((X, Y), order=eq.order.PairBalance(signal="exact"), batch=8)
    with pytest.raises(UserError, match="inside the loop"), sampler.watching(nn.Linear(6, 3)):
        pass
    with eq.Sampler((X, Y), batch=8).watching(nn.Linear(6, 3)):
        pass


def test_an_order_in_a_loop_that_accumulates_learns_nothing_from_a_bad_batch() -> None:
    """There the order sees every batch as it comes, before the step that skips it."""
    inputs, targets = torch.randn(40, 5), torch.randint(0, 3, (40,))
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = eq.Sampler((inputs, targets), order=eq.order.PairBalance(signal="exact"), batch=4)
    with eq.attach(model, optimizer, sampler=sampler, accumulate=2, nonfinite="skip"):
        for number, indices in enumerate(sampler):
            with sampler.watching(model):
                loss = torch.nn.functional.cross_entropy(model(inputs[indices]), targets[indices])
                (loss * (torch.nan if number == 4 else 1.0)).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        learned = sampler.order.state_dict()
    assert first_not_finite(learned) is None
    assert sorted(sampler.order.epoch(1).tolist()) == list(range(40))
