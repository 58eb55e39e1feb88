"""What Equipoise asks of every method, and what is special about this one."""

import pytest
import torch
from median_sync import Median

import equipoise as eq
from equipoise.testing import PROMISES


@pytest.mark.parametrize("promise", PROMISES["sync"], ids=lambda promise: promise.__name__)
def test_it_keeps_the_promise(promise):
    promise(Median())


def test_one_broken_worker_does_not_move_the_median():
    def train(worker):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, sync=Median()):
            model(torch.ones(4, 2)).sum().backward()
            if worker.rank == 2:
                model.weight.grad.fill_(1e6)
            optimizer.step()
        return model.weight.abs().max().item()

    assert max(eq.spawn(train, 3, virtual=True)) < 10
