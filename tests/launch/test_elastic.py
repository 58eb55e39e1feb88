"""Elastic runs on the command line, under torchrun's environment, and with a process that joins or wakes up."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.cli.main import main
from equipoise.core.errors import UserError
from equipoise.testing import toy

CONTEXT = multiprocessing.get_context("fork")


@contextlib.contextmanager
def processes() -> Iterator[Callable[..., Any]]:
    """Forked ones, which save the imports; none is left behind."""
    started: list[Any] = []

    def start(function: Any, *args: Any, **environment: str) -> Any:
        def body() -> None:
            torch.set_num_threads(1)
            os.environ.update(environment, GLOO_SOCKET_IFNAME="lo")
            os._exit(function(*args) or 0)

        process = CONTEXT.Process(target=body)
        process.start()
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.join()


def wait_for(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.05)


def changes(run: Path) -> list[dict[str, Any]]:
    """The events of a change of membership so far."""
    lines = (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "membership"]


def test_the_command_starts_a_run_that_others_join_and_that_ends_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = "train --data synthetic --workers 2 --elastic 1:3 --deadline 10 --period 4 --epochs 100000 --out runs/a"
    with processes() as start:
        train = start(main, flags.split())
        wait_for(lambda: (tmp_path / "runs/a/address").exists())
        join = start(main, ["join", "runs/a", "--quiet"])
        wait_for(lambda: len(changes(tmp_path / "runs/a")) >= 3)
        (row, *_) = changes(tmp_path / "runs/a")
        assert (row["members"], row["joined"], row["reason"]) == ([0, 1, 2], [2], "join")
        os.kill(train.pid, signal.SIGINT)
        train.join(30)
        join.join(30)
        assert (train.exitcode, join.exitcode) == (130, 130)
    said = capfd.readouterr()
    assert "equipoise: to add a worker: equipoise join runs/a\n" in said.err
    assert "worker 2 joined; 3 workers go on from step" in said.err
    assert "to continue: equipoise resume runs/a" in said.out
    assert main(["join", "runs/a"]) == 2
    assert "no run answers at 127.0.0.1:" in capfd.readouterr().err
    for name, words in (("runs", "was it started with --elastic"), ("elsewhere", "write HOST:PORT")):
        assert main(["join", name]) == 2
        assert words in capfd.readouterr().err


def own_loop(results: Any) -> None:
    """A loop of the user's own that ends 6 steps after the second change. Worker 1 dies 3 steps after the first."""
    data = TensorDataset(toy.INPUTS, toy.TARGETS)
    net = toy.model()
    sgd, sampler = toy.optimizer(net.parameters()), eq.Sampler(data, batch=8)
    loader = DataLoader(data, batch_sampler=sampler)
    with eq.attach(net, sgd, period=2, sampler=sampler, elastic="1:3", deadline=20) as together:
        for _ in sampler.epochs(10**9):
            for x, y in loader:
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                sgd.step()
                history: list[Any] = together.elastic.history  # type: ignore[union-attr]
                since = together.clock.step - history[-1]["step"] if history else 0
                if together.comm.worker == 1 and len(history) == 1 and since == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                if len(history) == 2 and since == 6:
                    break
            else:
                continue
            break
        outcome = together.outcome()
    results.send_bytes(pickle.dumps((together.comm.worker, outcome["params_sha256"], outcome["membership"])))


def test_an_own_loop_under_torchrun_loses_a_worker_and_lets_one_in() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ours, theirs = CONTEXT.Pipe()
    with processes() as start:
        for rank in range(2):
            start(own_loop, theirs, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", **torchrun)
        store = dist.TCPStore("127.0.0.1", int(port), is_master=True, wait_for_workers=False)
        wait_for(lambda store=store: store.check(["equipoise/elastic/current"]))
        start(own_loop, theirs, EQUIPOISE_JOIN=f"127.0.0.1:{port}")
        rows = []
        for _ in range(2):
            assert ours.poll(60), "a process does not answer"
            rows.append(pickle.loads(ours.recv_bytes()))
        del store
    (one, two) = sorted(rows)
    assert (one[0], two[0]) == (0, 2)
    assert one[1:] == two[1:], "they end with the same model and the same history"
    joined, lost = one[2]
    assert (joined["members"], joined["joined"]) == ([0, 1, 2], [2])
    assert (lost["members"], lost["lost"][0]["worker"], lost["lost"][0]["why"]) == ([0, 2], 1, "has died")


def test_a_stopped_process_that_wakes_up_comes_back(tmp_path: Path) -> None:
    """It has been left out meanwhile, and is let in again with what the others have learned."""

    def run() -> None:
        options: dict[str, Any] = {"workers": 3, "elastic": "1:3", "deadline": 2.5, "out": tmp_path / "run"}
        toy.train(eq.sync.PeriodicAverage(), virtual=False, steps=None, epochs=10**6, **options)

    with processes() as start:
        launcher = start(run)
        events = tmp_path / "run" / "events.jsonl"
        wait_for(lambda: events.exists() and '"step": 10' in events.read_text())
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        stopped = int(children[-1])  # the last to be started: worker 2
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: any(2 not in e["members"] for e in changes(tmp_path / "run")))
        os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: any(2 in e["joined"] for e in changes(tmp_path / "run")))
        rows = changes(tmp_path / "run")
    assert rows[0]["lost"][0]["worker"] == 2
    assert rows[0]["lost"][0]["why"].startswith("gives no sign of life")


def test_a_run_that_is_not_elastic_or_of_another_recipe_cannot_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.comm.membership import Elasticity
    from equipoise.launch.take_part import own_run

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("EQUIPOISE_JOIN", f"127.0.0.1:{store.port}")
    with pytest.raises(UserError, match="is not elastic: start it with --elastic"):
        toy.train(eq.sync.AllReduce(), elastic=2, virtual=False)
    run = own_run(store, "0", (Elasticity(1, 4), 4))
    run.set("fingerprint", json.dumps({"sync.name": "diloco"}))
    with pytest.raises(UserError, match="sync.name: diloco in the checkpoint, all-reduce now"):
        toy.train(eq.sync.AllReduce(), elastic=2, virtual=False)
    monkeypatch.delenv("EQUIPOISE_JOIN")
    with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{store.port}: Address already in use; choose"):
        eq.spawn(lambda comm: None, 2, elastic=Elasticity(1, 2, listen=f"127.0.0.1:{store.port}"))
