"""An elastic run under torchrun on three hosts with separate folders: one is lost, the others go on, it comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import namespaces
from .namespaces import Hosts

RUN = "runs/e"
DEADLINE, PATIENCE = 8, 100.0  # seconds


def events(made: Hosts, host: int) -> list[dict[str, Any]]:
    path = made.work(host) / RUN / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def await_event(made: Hosts, hosts: list[int], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first such event of one of these hosts."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        for host in hosts:
            for event in events(made, host):
                if wanted(event):
                    return event
        time.sleep(0.1)
    raise AssertionError("\n".join(f"host {host}:\n{made.log(host)}" for host in range(made.count)))


def worker_of(agent: subprocess.Popen[str]) -> int:
    """The process that an agent of torchrun has started, on its own host."""
    pids = [int(word) for word in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return next(pid for pid, command in commands.items() if b"equipoise" in command)


def come_and_go(made: Hosts, port: int, *more: str) -> dict[str, Any]:
    """Start, kill one host's worker, let it join again, stop; what happened, in seconds and bytes."""
    train = ["train", "--data", "synthetic", "--model", "mlp", "--period", "8", "--steps", "1000000", "--quiet"]
    train += ["--log-every", "50", "--checkpoint-every", "100000", "--evaluate-every", "100000", "--timeout", "90"]
    train += ["--elastic", "1:4", "--deadline", str(DEADLINE), "--out", RUN, *more]
    agents = []
    processes: list[subprocess.Popen[str]] = []
    try:
        for host in range(3):
            meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{made.address(0)}:{port}", "--rdzv-id", "e"]
            own = ["--nnodes", "3", "--nproc-per-node", "1", "--local-addr", made.address(host)]
            own += ["--rdzv-conf", f"is_host={int(host == 0)}"]  # names of hosts are not known here
            agents.append(made.start(host, "torch.distributed.run", *own, *meet, "-m", "equipoise", *train))
        processes += agents
        for host in range(3):
            await_event(made, [host], lambda event: event["event"] == "step" and event["step"] >= 50)
        first = next(host for host in range(3) if (made.work(host) / RUN / "address").exists())
        victim = (first + 1) % 3
        others = [host for host in range(3) if host != victim]
        killed = time.time()
        os.kill(worker_of(agents[victim]), signal.SIGKILL)
        lost = await_event(made, others, lambda event: event["event"] == "membership" and event["lost"] != [])
        on = await_event(
            made,
            others,
            lambda event: event["event"] == "step" and event["time"] > lost["time"] and len(lost["members"]) == 2,
        )
        address = (made.work(first) / RUN / "address").read_text().strip()
        processes.append(made.start(victim, "equipoise", "join", address, "--quiet"))
        joined = await_event(made, others, lambda event: event["event"] == "membership" and event["joined"] != [])
        await_event(made, [victim], lambda event: event["event"] == "step" and event["step"] > joined["step"])
        os.kill(worker_of(agents[first]), signal.SIGINT)  # stops them all
        limit = time.monotonic() + PATIENCE
        for process in (agents[others[0]], agents[others[1]], processes[-1]):
            process.wait(max(0.1, limit - time.monotonic()))
        return {"lost": lost, "joined": joined, "seconds": on["time"] - killed, "victim": victim, "others": others}
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.skipif(not namespaces.possible(), reason="network namespaces are not permitted here")
def test_the_others_go_on_without_a_host_that_comes_back(tmp_path: Path) -> None:
    with namespaces.hosts(tmp_path, 3) as made:
        happened = come_and_go(made, 29533)
        lost, joined, victim = happened["lost"], happened["joined"], happened["victim"]
        assert len(lost["members"]) == 2
        assert [row["host"] for row in lost["lost"]] == [f"machine{victim}"]
        assert lost["dropped"]["steps"] <= 8, "one round at the most"
        assert len(joined["members"]) == 3
        assert joined["given_bytes"] > 0
        assert not joined["dropped"]["steps"], "a newcomer loses nothing"
        parts = [made.work(host) / RUN / "checkpoints" for host in range(3)]
        kept = [sorted(path.name for path in part.glob("step-*/worker-*.pt")) for part in parts]
        assert sorted(name for each in kept for name in each) == ["worker-0.pt", "worker-1.pt", "worker-2.pt"], (
            "the last checkpoint, in parts"
        )
        assert all(len(each) == 1 for each in kept)
