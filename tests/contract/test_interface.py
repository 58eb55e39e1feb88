"""The bytes that leave a host's network interface are those of the ledger, and the headers of the protocols below.

Three hosts are three processes, each in a network namespace of its own, on a bridge in a fourth one. The namespaces
have no names and end with the processes; no packet leaves the machine. Rendezvous and heartbeats go through files.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import FileStore

import equipoise as eq
from equipoise.comm.folder_store import FolderStore
from equipoise.comm.process import ProcessComm
from equipoise.config import registry
from equipoise.config.defaults import chosen_batch
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

from . import toy

HOSTS, ROUNDS = 3, 4
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
SYNCS = {"all-reduce": eq.sync.AllReduce(), "periodic-average": eq.sync.PeriodicAverage(), "d-psgd": eq.sync.DPSGD()}
WIRES = [name for name in ("float32", "bfloat16", "int8", "top-k", "power-sgd") if name in registry.names("wire")]
CASES = [(sync, wire) for sync in SYNCS for wire in WIRES]

# Below the payload: gloo puts 48 bytes before a message and 48 into each of two notices, ready to send and ready to
# receive. Ethernet, IPv4 and TCP with time stamps put 14 + 20 + 32 bytes before every 1448, and acknowledge them.
GLOO, FRAME, SEGMENT = 48, 66, 1448


class Traffic(NamedTuple):
    sent: int  # bytes at the interface
    repeated: int  # segments that TCP sent again
    payload: int  # bytes in the ledger
    messages: int


def most(own: Traffic, rows: list[Traffic]) -> int:
    """Bytes that may leave a host. It receives as much as it sends, as all do in these syncs."""
    received, messages = max(row.payload for row in rows), own.messages + max(row.messages for row in rows)
    pieces = 3 * messages + (own.payload + received) // SEGMENT + own.repeated
    return own.payload + 3 * GLOO * messages + FRAME * pieces + SEGMENT * own.repeated


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 128))


def job_of(sync: str, wire: str) -> Job:
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(24 * HOSTS, 256, generator=generator), torch.randint(128, (24 * HOSTS,), generator=generator)
    return Job(
        model,
        nn.CrossEntropyLoss(),
        Source(data),
        Length(steps=100),
        lambda p: torch.optim.SGD(p, lr=0.1),
        batch=chosen_batch(2),
        sync=SYNCS[sync],
        wire=toy.make("wire", wire),
    )


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)


def unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for scope in ("all", "default"):  # IPv6 would look for neighbours and routers while we count
        path = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if path.exists():
            path.write_text("1")


def hub(pipe: Connection) -> None:
    """The bridge between the hosts."""
    unshare()
    pipe.send("ready")
    ip("link add bridge type bridge")
    ip("link set bridge up")
    for rank, pid in enumerate(pipe.recv()):
        ip(f"link add host{rank} type veth peer name eth0 netns {pid}")
        ip(f"link set host{rank} master bridge up")
    pipe.send("done")
    pipe.recv()


def host(pipe: Connection, rank: int, folder: str, meeting: Any) -> None:
    torch.set_num_threads(1)
    unshare()
    pipe.send("ready")
    pipe.recv()
    ip(f"addr add 10.231.78.{rank + 1}/24 dev eth0")
    ip("link set eth0 up")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    store = FileStore(f"{folder}/rendezvous")
    comm = ProcessComm.join(store, rank, HOSTS, timeout=30, deterministic=False, control_store=FolderStore(folder))
    pipe.send({case: traffic_of(Worker(job_of(*case), comm), meeting) for case in CASES})
    pipe.recv()  # the others may still read
    comm.close()


def traffic_of(worker: Worker, meeting: Any) -> Traffic:
    ledger = worker.comm.ledger
    worker.step()  # neighbours are known, connections open
    before = Traffic(*interface(meeting), ledger.bytes, ledger.messages)
    for _ in range(ROUNDS):
        worker.step()
    after = Traffic(*interface(meeting), ledger.bytes, ledger.messages)
    return Traffic(*(b - a for a, b in zip(before, after, strict=True)))


def interface(meeting: Any) -> tuple[int, int]:
    """Bytes sent so far, and segments sent again, when nothing is on the way any more."""
    meeting.wait(30)
    time.sleep(0.05)  # a delayed acknowledgement waits 40 ms
    line = next(row for row in Path("/proc/self/net/dev").read_text().splitlines() if "eth0:" in row)
    names, values = (row.split() for row in Path("/proc/self/net/snmp").read_text().splitlines() if row[:4] == "Tcp:")
    counted = int(line.partition(":")[2].split()[8]), int(dict(zip(names, values, strict=True))["RetransSegs"])
    meeting.wait(30)
    return counted


def told(pipe: Connection, seconds: float = 60.0) -> Any:
    """What a child says next; its error is raised here."""
    assert pipe.poll(seconds), "a host does not answer"
    word = pipe.recv()
    if isinstance(word, BaseException):
        raise word
    return word


def child(function: Any, pipe: Connection, *args: Any) -> None:
    try:
        function(pipe, *args)
    except BaseException as error:
        error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
        pipe.send(error)
    finally:
        os._exit(0)  # skips the parent's exit handlers


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Traffic]]:
    if not hasattr(os, "memfd_create") or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux and iproute2 (ip)")
    # What is imported at the first step is imported once, before the hosts start.
    eq.spawn(lambda comm: Worker(job_of(*CASES[0]), comm).step(), 1, virtual=True)
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(HOSTS)
    folder = str(tmp_path_factory.mktemp("rendezvous"))
    started: list[tuple[Any, Connection]] = []
    try:
        for function, args in [(hub, ()), *((host, (rank, folder, meeting)) for rank in range(HOSTS))]:
            ours, theirs = context.Pipe()
            process = context.Process(target=child, args=(function, theirs, *args))
            process.start()
            theirs.close()
            started.append((process, ours))
        (_, bridge), hosts = started[0], started[1:]
        try:
            for _, pipe in started:
                told(pipe)
        except PermissionError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.strerror}; run as root")
        bridge.send([process.pid for process, _ in hosts])
        told(bridge)
        for _, pipe in hosts:
            pipe.send("go")
        rows = [told(pipe) for _, pipe in hosts]
        for _, pipe in started:
            pipe.send("end")
    finally:
        for process, pipe in started:
            process.join(5)
            process.kill()
            process.join()
            pipe.close()
    return {case: [row[case] for row in rows] for case in CASES}


@pytest.mark.parametrize(("sync", "wire"), CASES)
def test_the_interface_carries_the_bytes_of_the_ledger(
    sync: str, wire: str, traffic: dict[tuple[str, str], list[Traffic]]
) -> None:
    rows = traffic[sync, wire]
    payload = sum(row.payload for row in rows)
    assert payload > 0
    # A ring of gloo does not divide vectors as the ledger does; their sum is the same.
    assert sum(row.sent for row in rows) >= payload
    for row in rows:
        if wire != "float32":
            assert row.sent >= row.payload
        assert row.sent <= most(row, rows), row
