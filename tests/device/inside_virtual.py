"""Virtual workers with models on the device: the numbers of the CPU, what a checkpoint keeps, how often the host waits.

test_device.py runs this file in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.random import seed_worker
from equipoise.testing import toy

from . import device
from .cases import STEPS, STOP, WORKERS, methods, seeded_model

HERE = device.load()
METHODS = methods()
RUN: dict[str, Any] = {"workers": WORKERS, "steps": STEPS}


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.testing.toy.model", seeded_model)


def sha(method: Any, **changes: Any) -> str:
    found: str = toy.train(method, **{**RUN, **changes}).result["params_sha256"]
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_the_bits_of_the_cpu_also_when_it_is_resumed(name: str, tmp_path: Path) -> None:
    """The kernels of this device are those of the CPU. The toy has dropout: the device's generator is resumed too."""
    method = METHODS[name]
    sha(method, steps=STOP, out=tmp_path, checkpoint_every=STOP, device=HERE)
    assert sha(method, out=tmp_path, resume=True, device=HERE) == sha(method)


def test_without_float64_only_reports_may_differ() -> None:
    """As on MPS. Means over workers for evaluations are taken on the host, and nothing of the training needs it."""
    with device.without_float64():
        for name in ("sync-all-reduce", "sync-mgrawa", "wire-dct", "order-cd-grab", "batch-norm-test"):
            assert sha(METHODS[name], device=HERE) == sha(METHODS[name]), name


@pytest.mark.parametrize("back", [False, True])
def test_a_run_moves_between_devices(back: bool, tmp_path: Path) -> None:
    first, second = (HERE, "cpu") if back else ("cpu", HERE)
    for name in ("sync-sgp", "sync-lgrawa", "wire-top-k", "order-grab", "order-herding"):
        folder = tmp_path / name
        toy.train(METHODS[name], **RUN | {"steps": STOP}, out=folder, checkpoint_every=STOP, device=first)
        moved = toy.train(METHODS[name], **RUN, out=folder, resume=True, device=second).result
        assert moved["steps"] == STEPS


def test_each_worker_has_a_stream_of_its_own_on_the_device() -> None:
    """Virtual workers take turns on one generator. Each draws what it would draw alone."""

    def drawn(comm: Comm) -> list[float]:
        seed_worker(3, comm.rank)
        values = []
        for _ in range(3):
            values += torch.rand(2, device=HERE).tolist()
            comm.sum(torch.zeros(1))  # hands over
        return values

    eq.train(toy.model, nn.CrossEntropyLoss(), (toy.INPUTS, toy.TARGETS), steps=1, device=HERE)  # the device is in use
    together = eq.spawn(drawn, 2, virtual=True)
    for rank, values in enumerate(together):
        seed_worker(3, rank)
        assert torch.rand(6, device=HERE).tolist() == pytest.approx(values)


@pytest.mark.parametrize("name", ["sync-all-reduce", "sync-diloco", "sync-sgp", "wire-int8"])
def test_a_loop_of_ones_own_on_the_device(name: str) -> None:
    def loop(comm: Comm, where: Any) -> Any:
        seed_worker(0, comm.rank)
        net = toy.model().to(where)
        sgd = toy.optimizer(net.parameters())
        data = TensorDataset(toy.INPUTS, toy.TARGETS)
        sampler = eq.Sampler(data, batch=8)
        chosen = {key: value for key, value in toy.choices(METHODS[name]).items() if key != "batch"}
        with eq.attach(net, sgd, sampler=sampler, **chosen) as together:
            for x, y in DataLoader(data, batch_sampler=sampler, generator=torch.Generator()):
                sgd.zero_grad()
                nn.functional.cross_entropy(net(x.to(where)), y.to(where)).backward()
                sgd.step()
            return together.model_state()

    there, here = (eq.spawn(lambda comm, w=w: loop(comm, w), 2, virtual=True)[0] for w in (HERE, "cpu"))
    for key, value in here.items():
        assert torch.equal(there[key].cpu(), value)


# -- how often the host waits -----------------------------------------------------------------------------------------
MOST = {
    "sync-all-reduce": 2,  # the loss, read with the sum of the gradient; the sum of the weights
    "sync-none": 1,
    "sync-periodic-average": 2,  # a round looks at the parameters before they are sent
    "wire-int8": 4,  # and at what is coded, the weights, and the sum
    "batch-norm-test": 4,
    "order-pair-balance": 2,  # those of the all-reduce: vectors stay there until the epoch ends
    "order-pair-balance-exact": 6,  # the host checks the factors, chooses signs from products, and sorts by them
}


def waits(method: Any, steps: int) -> int:
    with device.counted() as row:
        toy.train(method, workers=2, steps=steps, device=HERE)
    reads, downloads, _ = row
    return reads + downloads


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith(("sync", "wire")) or name in MOST])
def test_the_host_waits_a_few_times_a_step(name: str) -> None:
    """The difference of two runs within the first epoch: what begins and ends a run is in both."""
    short, long = 4, 12
    a_step = (waits(METHODS[name], long) - waits(METHODS[name], short)) / (2 * (long - short))
    print(name, a_step)
    assert a_step <= MOST.get(name, 4)


# -- lower precision ---------------------------------------------------------------------------------------------------
def test_an_overflow_is_skipped_by_all_workers() -> None:
    """The scale begins at 65536: the first steps of a loss of this size overflow in float16."""

    def large(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 1e4 * nn.functional.cross_entropy(outputs.float(), targets)

    before = toy.model().state_dict()
    settings: dict[str, Any] = {"workers": 2, "batch": 8, "autocast": "float16", "sync": eq.sync.AllReduce()}
    data = (toy.INPUTS, toy.TARGETS)
    small = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1e-5)}
    one = eq.train(toy.model, large, data, steps=1, device=HERE, **settings, **small)
    many = eq.train(toy.model, large, data, steps=24, device=HERE, **settings, **small)
    assert all(torch.equal(before[name], value) for name, value in one.model.state_dict().items())
    assert not all(torch.equal(before[name], value) for name, value in many.model.state_dict().items())
    assert all(value.isfinite().all() for value in many.model.state_dict().values())
