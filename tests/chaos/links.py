"""A link that is cut: each worker is on a host of its own, a network namespace, and one host falls off the bridge.

The namespaces have no names and end with the processes that hold them; no packet leaves the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.comm.membership import Elasticity

from . import story
from .churn import EPOCHS
from .count import Sums
from .kills import RESUMED, check_checkpoints, check_history, one_life
from .victim import Outcome, Victim, patient, until

NEW_NETWORK = 0x40000000
NETWORK = "10.231.79"
TIMEOUT, GRACE = 3.0, 12.0  # seconds


class Hosts:
    """Namespaces on a bridge. `on(rank, f)` runs a function on a host; -1 is the bridge."""

    def __init__(self, count: int):
        self.holders = [Victim(_hold) for _ in range(count + 1)]  # the bridge is the last
        if not until(lambda: all(self._has_its_own(holder) or holder.ended() for holder in self.holders), 10.0):
            raise OSError("network namespaces cannot be made here")
        if any(holder.ended() for holder in self.holders):
            raise OSError("network namespaces cannot be made here: run as root")
        self._ip(-1, "link add bridge type bridge", "link set bridge up")
        for rank, holder in enumerate(self.holders[:-1]):
            self._ip(-1, f"link add host{rank} type veth peer name eth0 netns {holder.pid}")
            self._ip(-1, f"link set host{rank} master bridge up")
            self._ip(rank, f"addr add {NETWORK}.{rank + 1}/24 dev eth0", "link set eth0 up", "link set lo up")

    @staticmethod
    def _has_its_own(holder: Victim) -> bool:
        return os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def on(self, rank: int, function: Callable[[], Any], said: Path | None = None) -> Victim:
        def enter() -> Any:
            handle = os.open(f"/proc/{self.holders[rank].pid}/ns/net", os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(handle, NEW_NETWORK) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return function()

        return Victim(enter, said)

    def _ip(self, rank: int, *commands: str) -> None:
        def run() -> None:
            for command in commands:
                subprocess.run(["ip", *command.split()], check=True)

        outcome = self.on(rank, run).wait(20)
        assert outcome.code == 0, outcome

    def cut(self, rank: int) -> None:
        self._ip(-1, f"link set host{rank} down")

    def mend(self, rank: int) -> None:
        self._ip(-1, f"link set host{rank} up")

    def close(self) -> None:
        for holder in self.holders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, signal.SIGKILL)
            holder.wait(5)


def _hold() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    last()


def last() -> None:
    """As long as the process that started this one."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)


@contextlib.contextmanager
def hosts(count: int = story.WORKERS) -> Iterator[Hosts]:
    made = Hosts(count)
    try:
        yield made
    finally:
        made.close()


def as_torchrun(rank: int, port: int, function: Callable[[], Any]) -> Callable[[], Any]:
    """The function in the environment that torchrun gives a process on a host of its own."""

    def run() -> Any:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK="0",
            WORLD_SIZE=str(story.WORKERS),
            MASTER_ADDR=f"{NETWORK}.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            GLOO_SOCKET_IFNAME="eth0",
        )
        import torch

        torch.set_num_threads(1)
        return function()

    return run


def agent(port: int) -> None:
    """The process of torchrun that holds the store, on the first host."""
    import torch.distributed as dist

    store = dist.TCPStore(f"{NETWORK}.1", port, is_master=True, wait_for_workers=False)
    last()
    assert store is not None


def cut_link(sync: str, rng: random.Random, folder: Path, sums: Sums, network: Hosts) -> None:
    """One host falls off in the middle; later its link is mended, and the run is resumed."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    lost, step, port = rng.randrange(story.WORKERS), rng.randint(2, 16), rng.randint(20_000, 29_000)
    what = f"{sync}, host {lost} at step {step}"

    def life(number: int, resume: bool, **how: Any) -> list[Victim]:
        journal.life = number
        return [
            network.on(
                rank,
                as_torchrun(rank, port + number, lambda: one_life(run, sync, journal, resume, None, how)),
                folder / f"said-{rank}",
            )
            for rank in range(story.WORKERS)
        ]

    agents = [network.on(0, partial(agent, port + number)) for number in range(2)]
    workers = life(0, False, timeout=patient(TIMEOUT))
    until(lambda: journal.step(0) >= step or any(worker.ended() for worker in workers))
    network.cut(lost)
    began = time.monotonic()
    end = began + patient(TIMEOUT + GRACE + 1)
    outcomes = [worker.wait(max(0.0, end - time.monotonic()) / patient(1)) for worker in workers]
    network.mend(lost)
    if all(outcome.code == 0 for outcome in outcomes):
        return  # it had ended before
    count_lines(lost, outcomes, what, sums)
    for worker in workers:
        worker.left_behind(5)
    start = story.resume_point(run)
    check_checkpoints(run, what, sums, at_least=0)
    if not start and run.exists():
        (run / "events.jsonl").unlink()
    again = [worker.wait(60) for worker in life(1, bool(start))]
    right = all(outcome.value == (story.undisturbed(sync), 0) for outcome in again)
    sums.row("runs with a link that was cut", RESUMED).count(right, f"{what}: {again}")
    check_history(run, journal.agreed({0: 0, 1: start}), what, sums)
    for process in agents:
        process.kill_group()
        process.wait(5)


def cut_elastic(sync: str, rng: random.Random, folder: Path, sums: Sums, network: Hosts) -> None:
    """One host falls off an elastic run: the others go on. Its link is mended, and its worker rejoins or ends."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    lost, step, port = rng.randrange(1, story.WORKERS), rng.randint(2, 40), rng.randint(20_000, 29_000)
    what = f"{sync}, host {lost} at step {step}"
    elastic = Elasticity(1, story.WORKERS, patient(TIMEOUT), snapshot_every=4)
    how = {"elastic": elastic, "epochs": EPOCHS, "checkpoint_every": 1000}
    store = network.on(0, partial(agent, port))
    workers = [
        network.on(
            rank,
            as_torchrun(rank, port, lambda: story.train(run, sync, journal, **how).result),
            folder / f"said-{rank}",
        )
        for rank in range(story.WORKERS)
    ]
    until(lambda: journal.last_step() >= step or any(worker.ended() for worker in workers))
    network.cut(lost)
    until(lambda: journal.generation() > 0 or any(worker.ended() for worker in workers), TIMEOUT + GRACE)
    network.mend(lost)
    outcomes = [worker.wait(90) for worker in workers]
    store.kill_group()
    store.wait(5)
    others = [outcome for rank, outcome in enumerate(outcomes) if rank != lost]
    survived = all(o.code == 0 and o.value["epochs"] == EPOCHS for o in others)
    sums.row("elastic runs that lose a host", "the others go on to the end").count(survived, f"{what}: {outcomes}")
    row = sums.row("workers whose link was mended", "rejoin the run, or end with a line")
    own = outcomes[lost]
    row.count(own.code == 0 or (own.code in (2, 3) and bool(own.line)), f"{what}: {own}")
    if survived:
        history = others[0].value["membership"]
        wrong = story.lost_and_repeated(journal.agreed_in(history), EPOCHS)
        sums.row("examples of elastic runs", "each once per epoch in what counts").count(wrong == 0, what)
        told = [gone["worker"] for r in history for gone in r["lost"]]
        named = sums.row("lost workers of elastic runs", "each named with the reason, and nobody else")
        named.count(told == [lost], f"{what}: {told}")


def count_lines(lost: int, outcomes: list[Outcome], what: str, sums: Sums) -> None:
    """The store is on the first host: who is cut off from it cannot know more than that."""
    reach = [0] if lost == 0 else [rank for rank in range(story.WORKERS) if rank != lost]
    for rank, outcome in enumerate(outcomes):
        if rank not in reach:
            row = sums.row(
                "workers cut off from the store", f"end with a line {patient(GRACE):g} s after the deadline at most"
            )
            row.count(outcome.code == 3 and bool(outcome.line), f"{what}: worker {rank}: {outcome}")
        elif lost:
            row = sums.row(
                "workers that lose a host", f"name its worker {patient(GRACE):g} s after the deadline at most"
            )
            row.count(outcome.code == 3 and outcome.line.startswith(f"worker {lost} "), f"{what}: {outcome}")
