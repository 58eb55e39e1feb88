"""Local workers that may die: the others go on, and new ones may join from here or from another host.

The store is in a process of its own, so that any worker may be lost. The parent watches its children, tells the others
how one ended, and starts lost ones again if asked to.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import os
import pickle
import random
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..comm.base import Comm
from ..comm.interfaces import use_interface_to
from ..comm.membership import Elasticity
from ..core.errors import Drift, Left, LeftOut, NonFinite, Refused, TooFew, UserError
from . import local
from .afresh import used_here
from .take_part import connect, own_run, split, take_part

_LEFT = "has left"
_FATAL = (UserError, NonFinite, TooFew, Drift)  # what ends the run for all workers
_context = multiprocessing.get_context("fork")


@dataclass
class Child:
    worker: int
    process: Any
    pipe: Connection


class ElasticLauncher:
    """Starts the workers of one run, watches them and collects what they give."""

    def __init__(
        self,
        function: Callable[[Comm], Any],
        elasticity: Elasticity,
        *,
        timeout: float,
        deterministic: bool,
        children: list[Any],
        device: torch.device | None = None,
    ):
        used = used_here(device)
        if used is not None:
            raise UserError(
                f"this process has used {used}, and workers that come and go are forked: start the program with "
                f"torchrun, or use {used} in the workers alone"
            )
        self.device = device
        self.function, self.elasticity, self.respawn = function, elasticity, elasticity.respawn
        listen = elasticity.listen
        self.timeout, self.deterministic = timeout, deterministic
        self.processes = children  # all that were started, for whoever sends them signals
        self.running: list[Child] = []
        self.listener = self._listen(listen)
        host = split(listen)[0] if listen is not None else "127.0.0.1"
        self.address = f"{host}:{self.listener.getsockname()[1]}"
        self.results: dict[int, Any] = {}
        self.failures: dict[int, dict[str, Any]] = {}
        self.store: Any = None
        self.steps = memoryview(b"")

    @staticmethod
    def _listen(listen: str | None) -> socket.socket:
        host, port = split(listen) if listen is not None else ("127.0.0.1", 0)
        try:
            return socket.create_server((host, port), backlog=128)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno is not None else str(error)
            raise UserError(f"cannot listen at {listen}: {why}; choose another address") from None

    def run(self, workers: int, announce: Callable[[str, Any], None] | None = None) -> list[Any]:
        """The results of the workers that came to the end, by worker."""
        # Shared memory in which each child writes its step, so that the step of a dead one is known too.
        self.steps = memoryview(mmap.mmap(-1, 8 * workers)).cast("q")
        sys.stdout.flush()
        sys.stderr.flush()
        keeper = _context.Process(target=_keep_store, args=(self.listener, self.address, os.getpid()), name="store")
        keeper.start()
        self.listener.close()
        try:
            for worker in range(workers):
                self._start(worker, workers)
            store = connect(self.address, self.timeout)
            self.store = own_run(store, "0", (self.elasticity, workers))
            if announce is not None:
                announce(self.address, self.store)
            self._watch()
        finally:
            for child in self.processes:
                if child.is_alive():
                    child.kill()
            for child in self.processes:
                child.join()
            for each in self.running:
                each.pipe.close()
            keeper.kill()
            keeper.join()
        if not self.results:
            raise local.error_from(self.failures)
        return [self.results[worker] for worker in sorted(self.results)]

    def _start(self, worker: int, size: int | None) -> None:
        ours, theirs = _context.Pipe()
        args = (self, worker, size, theirs, random.getstate())
        process = _context.Process(target=_child, args=args, name=f"worker-{worker}")
        process.start()
        theirs.close()
        self.processes.append(process)
        self.running.append(Child(worker, process, ours))

    def _watch(self) -> None:
        """Until all workers have ended; once one has come to the end of the run, the others are about to."""
        limit: float | None = None
        while self.running and (limit is None or time.monotonic() < limit):
            ready = wait([child.pipe for child in self.running], timeout=0.5)
            for child in [child for child in self.running if child.pipe in ready]:
                self.running.remove(child)
                self._ended(child)
                child.pipe.close()
            if self.results and limit is None:
                limit = time.monotonic() + local._GRACE
            if self.results and not any(child.worker in self._members() for child in self.running):
                return  # those that are left were left out

    def _members(self) -> list[int]:
        """Of the last generation."""
        roster = json.loads(self.store.get(f"roster/{self.store.get('generation').decode()}"))
        return [row[0] for row in roster["members"]]

    def _ended(self, child: Child) -> None:
        worker = child.worker
        try:
            kind, value = pickle.loads(child.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            child.process.join()
            why = local.end_of(child.process.exitcode)
            self.failures[worker] = local.death(worker, child.process.exitcode, self.steps[worker])
        else:
            if kind == "done":
                self.results[worker] = value
                return
            self.failures[worker] = value
            why = _LEFT if value["type"] == Left.__name__ else f"failed: {value['type']}: {value['message']}"
            if value["type"] in {cls.__name__ for cls in _subclasses(_FATAL)}:
                raise local.error_from({worker: value})
            if value["type"] == Refused.__name__:
                print(f"equipoise: {value['message']}", file=sys.stderr, flush=True)
            if value["type"] in (LeftOut.__name__, Refused.__name__):
                return
            if value["type"] != Left.__name__:
                print(f"equipoise: worker {worker} {why}\n{value['trace']}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # the store may be gone
            self.store.set(f"end/{worker}/{child.process.pid}", json.dumps([why, self.steps[worker]]))
        if self.respawn > 0 and not self.results and why != _LEFT:
            self.respawn -= 1
            self._start(worker, None)


def _subclasses(classes: tuple[type, ...]) -> list[type]:
    return [found for cls in classes for found in (cls, *_subclasses(tuple(cls.__subclasses__())))]


def _keep_store(listener: socket.socket, address: str, parent: int) -> None:
    """Serve the store for as long as the launcher lives."""
    import signal

    from torch._C._distributed_c10d import TCPStore

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    host, port = split(address)
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    while os.getppid() == parent:
        time.sleep(0.5)
    del store
    os._exit(0)


def _child(launcher: ElasticLauncher, worker: int, size: int | None, pipe: Connection, rng_state: Any) -> None:
    local.begin_child(rng_state)
    try:
        host, _ = split(launcher.address)
        local.use_loopback() if host == "127.0.0.1" else use_interface_to(host)
        store = own_run(connect(launcher.address, launcher.timeout), "0")
        result = take_part(
            launcher.function,
            store,
            worker,
            launcher.elasticity,
            size=size,
            launched=launcher.steps,
            timeout=launcher.timeout,
            deterministic=launcher.deterministic,
            device=launcher.device,
        )
        # Plain pickle: multiprocessing would send tensors as shared memory, which ends with this process.
        pipe.send_bytes(pickle.dumps(("done", result)))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(("failed", local.report_of(error, 0))))
    finally:
        local.end_child()
