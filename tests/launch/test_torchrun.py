"""Processes started by torchrun know each other by environment variables alone. Forked here, to save the imports."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from equipoise.comm import heartbeat
from equipoise.comm.current import current_comm, set_current
from equipoise.core.errors import NonFinite, PeerLost, UserError
from equipoise.launch.start import spawn

WORKERS = 2


def under_torchrun(function: Any, workers: int = WORKERS, patience: float = 60) -> list[Any]:
    """`function(rank)` in processes with torchrun's environment, which meet in a store of their launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # imports much of torch: once here
    pipes, children = [], []
    for rank in range(workers):
        ours, theirs = context.Pipe()
        child = context.Process(target=_main, args=(function, rank, workers, port, theirs))
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    try:
        answers = []
        for pipe in pipes:
            assert pipe.poll(patience), "a process does not answer"
            try:
                answers.append(pickle.loads(pipe.recv_bytes()))
            except EOFError:
                answers.append((None, "died"))
        for problem, _ in answers:
            assert problem is None, problem
        return [value for _, value in answers]
    finally:
        for child in children:
            child.kill()
            child.join()
        del store


def _main(function: Any, rank: int, workers: int, port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(workers),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_SOCKET_IFNAME="lo",
    )
    set_current(None)
    try:
        answer = None, function(rank)
    except BaseException as error:
        answer = repr(error), None
    pipe.send_bytes(pickle.dumps(answer))
    os._exit(0)


def test_launch_uses_the_processes_that_are_there_again_and_again() -> None:
    """A second run must not meet what the first one left in the store that outlives both."""

    def work(comm: Any) -> tuple[Any, ...]:
        return comm.rank, comm.size, comm.virtual, comm.sum(torch.ones(2)).tolist(), comm.counter("c", 1)

    def twice(rank: int) -> list[Any]:
        return [spawn(work, WORKERS, timeout=30.0) for _ in range(2)]

    both = under_torchrun(twice)
    for turn in range(2):
        rows = [answers[turn] for answers in both]
        assert [len(r) for r in rows] == [1, 1], "each process has its own worker's result"
        assert [r[0][:4] for r in rows] == [(rank, 2, False, [2.0, 2.0]) for rank in range(2)]
        assert sorted(r[0][4] for r in rows) == [1, 2]


def test_a_group_that_the_program_made_is_used_and_left_alone() -> None:
    def loop(rank: int) -> Any:
        dist.init_process_group("gloo")
        comm = current_comm()
        assert current_comm() is comm
        first = comm.sum(torch.ones(1)).item(), comm.counter("c", 1) > 0
        comm.close()
        total = torch.ones(1)
        dist.all_reduce(total)
        return *first, total.item()

    assert under_torchrun(loop) == [(2.0, True, 2.0)] * 2


def test_train_claims_its_folder_once_and_resumes(tmp_path: Path) -> None:
    import equipoise as eq

    data = torch.randn(24, 3), torch.randint(0, 2, (24,))
    model = torch.nn.Linear(3, 2)

    def train(**more: Any) -> Any:
        return eq.train(
            model, torch.nn.functional.cross_entropy, data, batch=4, deterministic=True, timeout=30.0, **more
        )

    def loop(rank: int) -> Any:
        train(steps=2, out=tmp_path / "run")
        run = train(steps=5, out=tmp_path / "run", resume=True)
        return run.result["params_sha256"], run.result["steps"], [p.tolist() for p in run.model.parameters()]

    answers = under_torchrun(loop)
    assert answers[0] == answers[1]
    uninterrupted = train(steps=5, workers=2)
    assert answers[0] == (
        uninterrupted.result["params_sha256"],
        5,
        [p.tolist() for p in uninterrupted.model.parameters()],
    )


@pytest.mark.parametrize("near", [True, False], ids=["one machine", "machines apart"])
def test_who_left_because_of_a_dead_worker_is_not_blamed_for_it(near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 notices at once and leaves. Worker 2 comes later and misses both."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    if not near:
        monkeypatch.setattr(heartbeat, "machine", lambda: "")

    def loop(rank: int) -> Any:
        comm = current_comm()
        comm.sum(torch.ones(1))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(rank)
        with pytest.raises(PeerLost) as caught:
            comm.sum(torch.ones(1))
        return caught.value.rank, str(caught.value).split(",")[0]

    assert under_torchrun(loop, 3) == [(1, "worker 1 has died"), "died", (1, "worker 1 has died")]


def test_an_own_loop_that_fails_tells_the_others_who_say_it_in_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)

    def loop(rank: int) -> None:
        comm = current_comm()
        comm.sum(torch.ones(1))
        try:
            if rank == 1:
                raise KeyError("mine")
            comm.sum(torch.ones(1))
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)  # as Python does if nobody catches it
            os._exit(1)

    assert under_torchrun(loop) == ["died", "died"]
    lines = capfd.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("equipoise: process 0: worker 1 failed (KeyError: 'mine'), last")]
    own = [line for line in lines if "KeyError: 'mine'" in line and line not in told]
    assert len(told) == len(own) == 1
    assert sum("Traceback" in line for line in lines) == 1, "that of the worker whose error it is"


def test_a_group_is_left_by_close_and_joined_again() -> None:
    import equipoise as eq

    def beating() -> int:
        return sum(thread.name == "heartbeat" for thread in threading.enumerate())

    def loop(rank: int) -> Any:
        seen = []
        for _ in range(2):
            seen += [current_comm().sum(torch.ones(1)).item(), beating()]
            eq.close()
            seen += [beating(), dist.is_initialized()]
        eq.close()
        return seen

    assert under_torchrun(loop) == [[2.0, 1, 0, False] * 2] * 2


def test_alone_there_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    set_current(None)
    try:
        comm = current_comm()
        assert (comm.rank, comm.size) == (0, 1)
        assert comm.mean(torch.ones(2)).tolist() == [1.0, 1.0]
        assert current_comm() is comm
    finally:
        set_current(None)


@pytest.mark.parametrize("elements", [3, 40_000], ids=["gloo", "shared-memory"])
def test_a_worker_that_stops_tells_the_others_why(elements: int, tmp_path: Path) -> None:
    """Without a launcher of ours each process ends by itself: all by the same line, which names the worker."""
    import equipoise as eq

    data = torch.randn(24, elements), torch.randint(0, 2, (24,))
    data[0][21] = torch.nan  # the last batch but one of worker 1

    def loop(rank: int) -> str:
        model = torch.nn.Linear(elements, 2)
        with pytest.raises(NonFinite) as stopped:
            eq.train(
                model, torch.nn.functional.cross_entropy, data, batch=4, timeout=30.0, out=tmp_path / "run",
                checkpoint_every=1, partition=eq.partition.Contiguous(), order=eq.order.Sequential(),
            )  # fmt: skip
        return str(stopped.value)

    first, second = under_torchrun(loop)
    assert first == second
    assert first.startswith("worker 1, step 3: the loss is nan on examples [20, 21, 22, 23]")
    assert first.endswith("checkpoints/step-2")


def test_wrappers_that_communicate_on_their_own_are_refused_in_one_line() -> None:
    """DDP would average every gradient, and the loop would believe that it takes local steps."""
    import equipoise as eq

    def refusal(model: torch.nn.Module) -> str:
        with pytest.raises(UserError) as refused:
            eq.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), period=8)
        return str(refused.value)

    def loop(rank: int) -> list[str]:
        dist.init_process_group("gloo")
        plain = torch.nn.Linear(3, 2)
        wrapped = torch.nn.parallel.DistributedDataParallel(plain)
        said = [refusal(wrapped), refusal(torch.nn.Sequential(wrapped)), refusal(plain)]
        sharded = torch.nn.Sequential(torch.nn.Linear(3, 2))
        fully_shard(sharded)
        said.append(refusal(sharded))
        del wrapped
        eq.attach(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
        return said

    for said in under_torchrun(loop):
        assert ["DistributedDataParallel" in line for line in said] == [True, True, True, False]
        assert "the module '0' of the model" in said[1]
        assert "FSDP (fully_shard)" in said[3]
        assert all("\n" not in line and "sync=eq.sync.AllReduce()" in line for line in said)


def test_worlds_of_virtual_workers_in_every_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        UserError, match="torchrun has started 2 processes.* 4 virtual workers .*leave out virtual=True"
    ):
        spawn(lambda comm: None, 4, virtual=True)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert spawn(lambda comm: comm.size, 4, virtual=True) == [4] * 4


def test_the_scripts_of_the_readme_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never two worlds that know nothing of each other: a loop is refused with the fix, `eq.train` says who works."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    loop, train = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert "eq.spawn(main, workers=4, virtual=True)" in loop
    assert "workers=8" in train

    def run(rank: int) -> Any:
        names: dict[str, Any] = {}
        said: list[str] = []
        monkeypatch.setattr("equipoise.loop.train.say_once", lambda text, rank: said.append(text))
        with pytest.raises(UserError, match="leave out virtual=True"):
            exec(loop, names)
        exec(loop.replace("eq.spawn(main, workers=4, virtual=True)", "main(None)"), names)
        exec(train, names)
        return said, len(names["run"].result["workers"])

    assert under_torchrun(run) == [(["the workers are the 2 processes of torchrun, not workers=8"], 2)] * 2


def test_a_group_of_the_program_is_a_world_of_its_own() -> None:
    """Two groups of every second process train at the same time, to the bits of two virtual workers each."""
    import equipoise as eq

    inputs, targets = torch.randn(40, 6), torch.randint(0, 3, (40,))
    data = torch.utils.data.TensorDataset(inputs, targets)

    def train(sync: Any, seed: int, width: int, group: Any = None, **how: Any) -> list[float]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Linear(width, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = eq.Sampler(data, batch=4, seed=seed, group=group)
        with eq.attach(model, optimizer, sync=sync, sampler=sampler, group=group, final="mean", **how) as together:
            for indices in sampler:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs[indices]), targets[indices])
                loss.backward()
                together.loss = loss.item()
                optimizer.step()
        return [p.double().sum().item() for p in model.parameters()]

    chosen = [(eq.sync.DPSGD(), 4), (eq.sync.DPSGD(), 3000), (eq.sync.PeriodicAverage(), 4), (eq.sync.LSGD(), 4)]

    def loop(rank: int) -> Any:
        dist.init_process_group("gloo")
        group = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
        how = {"group": group, "deterministic": True, "timeout": 20.0}
        found = [train(sync, rank % 2, width, **how) for sync, width in chosen]
        comm = current_comm(group)
        model = torch.nn.Linear(6, 3)
        with (
            pytest.raises(UserError, match="pass the same group= or mesh= to both"),
            eq.attach(model, torch.optim.SGD(model.parameters()), sampler=eq.Sampler(data, group=group)),
        ):
            pass
        return found, comm.timeout, comm.rank, eq.world_size()

    answers = under_torchrun(loop, 4)
    assert [rest for _, *rest in answers] == [[20.0, 0, 4], [20.0, 0, 4], [20.0, 1, 4], [20.0, 1, 4]]
    for seed in range(2):
        expected = [spawn(lambda comm, s=s, w=w, seed=seed: train(s, seed, w), 2, virtual=True)[0] for s, w in chosen]
        assert answers[seed][0] == answers[seed + 2][0] == expected
