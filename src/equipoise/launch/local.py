"""Workers as local processes, forked: four of them start in a fraction of a second.

The parent hosts the store through which workers meet, so no port has to be chosen and none can be in use; it
watches its children and says who failed first.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from ..comm.base import Comm
from ..errors import PeerLost, WorkerError
from .current import set_current

_GRACE = 5.0  # seconds that survivors get to say what they saw, once one worker has failed


def run_processes(
    function: Callable[[Comm], Any], workers: int, *, timeout: float = 300.0, deterministic: bool = False
) -> list[Any]:
    """`function(comm)` on forked processes; their results by rank. A failure is raised here and names the worker."""
    context = multiprocessing.get_context("fork")
    pipes, children = [], []
    # Memory shared with the children: each writes the step it is in, so that the dead can be asked too.
    board = memoryview(mmap.mmap(-1, 8 * workers)).cast("q")
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(workers):
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_child, args=(function, rank, workers, theirs, timeout, deterministic, board), name=f"worker-{rank}"
        )
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    # After the fork: the store's thread must not exist in the children.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        for pipe in pipes:
            pipe.send(store.port)
        return _collect(children, pipes, board)
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
        for child in children:
            child.join()


def _child(
    function: Callable[[Comm], Any],
    rank: int,
    size: int,
    pipe: Connection,
    timeout: float,
    deterministic: bool,
    board: memoryview,
) -> None:
    torch.set_num_threads(1)  # first of all: the parent's OpenMP threads do not exist here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent forwards what it wants known
    comm = None
    try:
        from ..comm.process import ProcessComm

        port = pipe.recv()
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        comm = ProcessComm.join(store, rank, size, timeout=timeout, deterministic=deterministic, board=board)
        set_current(comm)
        pipe.send(("done", function(comm)))
        comm.close()
    except BaseException as error:
        report = {
            "type": type(error).__name__,
            "text": str(error),
            "trace": traceback.format_exc(),
            "step": getattr(comm, "step", 0),
            "victim": isinstance(error, PeerLost),
            "blames": getattr(error, "rank", None),
        }
        pipe.send(("failed", report))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # neither the parent's exit handlers nor its threads' leftovers belong to this process


def _collect(children: list[Any], pipes: list[Connection], board: memoryview) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, dict[str, Any]] = {}
    open_ranks = set(range(len(children)))
    deadline: float | None = None
    while open_ranks:
        ready = wait([pipes[r] for r in open_ranks], timeout=0.5)
        for rank in sorted(open_ranks):
            if pipes[rank] not in ready:
                continue
            open_ranks.discard(rank)
            try:
                kind, value = pipes[rank].recv()
            except (EOFError, ConnectionResetError):
                children[rank].join()
                failures[rank] = _death(rank, children[rank].exitcode, board[rank])
            else:
                (results if kind == "done" else failures)[rank] = value
        if failures and deadline is None:
            deadline = time.monotonic() + _GRACE
        culprit = any(not f["victim"] for f in failures.values())
        if failures and (culprit or time.monotonic() > (deadline or 0.0)):
            break
    if failures:
        raise _verdict(failures)
    return [results[rank] for rank in range(len(children))]


def _death(rank: int, code: int | None, step: int) -> dict[str, Any]:
    """A worker that ended without a word."""
    if code is not None and code < 0:
        how, hint = f"was killed by {signal.Signals(-code).name}", ""
        if -code == signal.SIGKILL:
            hint = " (if you did not do that, the machine may have run out of memory)"
    else:
        how, hint = f"ended with exit code {code}", ""
    text = f"worker {rank} {how} at step {step}{hint}"
    return {"type": "WorkerError", "text": text, "trace": "", "step": step, "victim": False, "blames": rank}


def _verdict(failures: dict[int, dict[str, Any]]) -> Exception:
    """The error to raise: a culprit before a victim, the lowest rank among equals."""
    rank = min(failures, key=lambda r: (failures[r]["victim"], r))
    found = failures[rank]
    cls = getattr(errors, found["type"], None)
    if isinstance(cls, type) and issubclass(cls, errors.UserError):
        error: Exception = cls(found["text"])
    elif isinstance(cls, type) and issubclass(cls, WorkerError):
        blamed = found["blames"] if found["blames"] is not None else rank
        error = cls(found["text"], blamed, found["step"])
    else:
        error = WorkerError(f"worker {rank} failed at step {found['step']}: {found['type']}: {found['text']}", rank, found["step"])
    error.remote_traceback = found["trace"]  # type: ignore[attr-defined]
    return error


def forward_signals(numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)) -> Callable[[], None]:
    """Pass signals on to all children as SIGTERM or SIGUSR1 (for Ctrl-C); a function that undoes it."""

    def handler(number: int, frame: Any) -> None:
        if number == signal.SIGINT and getattr(handler, "again", False):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        handler.again = True  # type: ignore[attr-defined]
        for child in multiprocessing.active_children():
            if child.pid is not None:
                os.kill(child.pid, signal.SIGUSR1 if number == signal.SIGINT else signal.SIGTERM)

    before = {n: signal.signal(n, handler) for n in numbers}

    def undo() -> None:
        for n, old in before.items():
            signal.signal(n, old)

    return undo
