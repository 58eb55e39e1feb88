"""Processes with models on the device: every sync and wire gives what virtual workers give on the CPU.

test_device.py runs this file in a process of its own, which never computes a gradient itself: it could not fork then.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.comm.process import ProcessComm
from equipoise.testing import toy

from ..contract import group
from . import device, strictccl
from .cases import methods, seeded_model

HERE = device.load()
WIRES = ("wire-int8", "wire-top-k", "wire-power-sgd")  # one of each collective
METHODS = {name: method for name, method in methods().items() if name.startswith(("sync", "order-cd")) or name in WIRES}
STEPS = 3


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.testing.toy.model", seeded_model)


def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a forked process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *args).result()


def hashes(**changes: Any) -> dict[str, str]:
    return {name: toy.train(m, steps=STEPS, **changes).result["params_sha256"] for name, m in METHODS.items()}


def test_every_method_on_processes_gives_the_bits_of_virtual_workers(capfd: pytest.CaptureFixture[str]) -> None:
    """One group of processes runs all of them; their messages go through host memory, which is said once."""
    runs = {name: partial(toy.train, method, steps=STEPS, device=HERE) for name, method in METHODS.items()}
    there = group.results(runs)
    said = capfd.readouterr().err
    assert said.count("go through host memory: no backend of the group sends tensors of strict") == 1
    here = elsewhere(hashes)
    assert {name: result["params_sha256"] for name, result in there.items()} == here


# -- a group that sends tensors of the device and no others, as nccl does ---------------------------------------------
def work_on(comm: Comm) -> dict[str, Any]:
    """All calls of a comm, with tensors of the device and of the CPU."""
    own, other = comm.rank, 1 - comm.rank
    found: dict[str, Any] = {}
    for where in (HERE, torch.device("cpu")):
        vector = torch.arange(6.0, device=where) + own
        outgoing, incoming = vector.clone(), torch.empty(6, device=where)
        comm.exchange({other: outgoing}, {other: incoming}).wait()
        message = torch.cat((vector * (own + 1), torch.tensor([own + 1.0], device=where)))
        weight = comm.weighted_mean(message)
        found[where.type] = [
            comm.sum(vector.clone()).tolist(),
            comm.broadcast(vector.clone(), 1).tolist(),
            comm.gather(vector).tolist(),
            incoming.tolist(),
            [weight, *message.tolist()],
        ]
    found["objects"] = comm.gather_objects(own)
    return found


def one_of_two(rank: int, folder: str, deterministic: bool) -> tuple[dict[str, Any], int]:
    strictccl.register()
    store = dist.FileStore(f"{folder}/store-{deterministic}", 2)
    dist.init_process_group(strictccl.NAME, store=store, rank=rank, world_size=2)
    comm = ProcessComm(deterministic=deterministic, timeout=30.0)
    comm.use_device(HERE)
    found = work_on(comm)
    calls = strictccl.StrictCCL.calls
    dist.destroy_process_group()
    return found, calls


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_for_the_device_alone_is_used_directly_and_gloo_beside_it(tmp_path: Path, deterministic: bool) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        jobs = [pool.submit(one_of_two, rank, str(tmp_path), deterministic) for rank in range(2)]
        (first, calls), (second, _) = (job.result(timeout=60) for job in jobs)
    assert calls >= 8  # the tensors of the device went to it
    assert first["strict"] == first["cpu"]
    assert second["strict"] == second["cpu"]
    for name in (0, 1, 2, 4):  # all but the exchange is the same on both
        assert first["cpu"][name] == second["cpu"][name]
    assert first["cpu"][0] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert first["objects"] == second["objects"] == [0, 1]


def loops(comm: Comm) -> list[float]:
    """A sampler, bfloat16 gradients, a sync that follows the loss, an evaluation: on the device throughout."""
    data = TensorDataset(toy.INPUTS, toy.TARGETS)
    found = []
    for sync, dtype in ((eq.sync.AllReduce(), torch.bfloat16), (eq.sync.LSGD(), torch.float32)):
        torch.manual_seed(0)
        net = nn.Linear(toy.INPUTS.shape[1], 4, dtype=dtype).to(HERE)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        sampler = eq.Sampler(data, batch=8)
        period = 1 if dtype == torch.bfloat16 else 2
        with eq.attach(net, sgd, sync=sync, sampler=sampler, period=period, deterministic=True, final="mean") as loop:
            for indices in sampler:
                sgd.zero_grad()
                outputs = net(toy.INPUTS[indices].to(HERE, dtype))
                loss = nn.functional.cross_entropy(outputs.float(), toy.TARGETS[indices].to(HERE))
                loss.backward()
                loop.loss = loss.item()
                sgd.step()
        found += [p.double().sum().item() for p in net.parameters()]
    return found


def in_its_group(rank: int, port: int) -> tuple[list[float], int]:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    strictccl.register()
    dist.init_process_group(strictccl.NAME)
    (found,) = eq.spawn(loops, 2, deterministic=True, device=HERE, timeout=30.0)
    dist.destroy_process_group()
    return found, strictccl.StrictCCL.calls


def virtually() -> list[float]:
    found: list[float] = eq.spawn(loops, 2, virtual=True, device=HERE)[0]
    return found


def test_loops_in_a_group_for_the_device_alone_give_the_bits_of_virtual_workers() -> None:
    """From the first batch of the sampler to the end of `spawn`: no tensor of the CPU reaches its backend."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        jobs = [pool.submit(in_its_group, rank, port) for rank in range(2)]
        (one, calls), (two, _) = (job.result(timeout=60) for job in jobs)
    assert calls > 0
    assert one == two == elsewhere(virtually)


# -- processes that are not forked ------------------------------------------------------------------------------------
def summed(comm: Comm) -> list[float]:
    device.load()
    return comm.sum(torch.rand(2).to(HERE) + comm.rank).tolist()


def test_workers_are_started_afresh_where_the_device_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = eq.spawn(summed, 2, device=HERE)
    monkeypatch.setattr(device, "started", True)
    state = torch.get_rng_state()
    assert eq.spawn(summed, 2, device=HERE) == forked  # with the generators of this process, as if they were forked
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(eq.errors.UserError, match="start the program with torchrun"):
        eq.spawn(summed, 2, device=HERE, elastic="1:2")
