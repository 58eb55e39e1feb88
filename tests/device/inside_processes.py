"""Processes with models on the device: every sync and wire gives what virtual workers give on the CPU.

test_device.py runs this file in a process of its own, which never computes a gradient itself: it could not fork then.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
