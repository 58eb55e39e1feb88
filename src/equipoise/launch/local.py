"""Workers as local processes, forked: four of them start in a fraction of a second.

Workers meet through a folder that the parent makes and removes, so no port has to be chosen, none can be in use and no name has
to be looked up; the parent watches its children and says who failed first.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from ..comm.base import Comm, barrier
from ..comm.current import set_current
from ..comm.folder_store import FolderStore
from ..core import errors
from ..core.errors import PeerLost, WorkerError

_GRACE = 5.0  # seconds that survivors get to say what they saw, once one worker has failed


def run_processes(
    function: Callable[[Comm], Any],
    workers: int,
    *,
    timeout: float = 300.0,
    deterministic: bool = False,
    children: list[Any] | None = None,
) -> list[Any]:
    """`function(comm)` on forked processes; their results by rank. A failure is raised here and names the worker.

    `children` is filled with the processes, for whoever wants to signal them meanwhile.
    """
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    children = [] if children is None else children
    folder = tempfile.mkdtemp(prefix="equipoise-")
    # Memory shared with the children: each writes the step it is in, so that the dead can be asked too.
    board = memoryview(mmap.mmap(-1, 8 * workers)).cast("q")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(workers):
            ours, theirs = context.Pipe()
            how = (function, rank, workers, theirs, folder, timeout, deterministic, board, random.getstate())
            child = context.Process(target=_child, args=how, name=f"worker-{rank}")
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        return _collect(children, pipes, board)
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
        for child in children:
            child.join()
        for pipe in pipes:
            pipe.close()
        shutil.rmtree(folder, ignore_errors=True)


def _child(
    function: Callable[[Comm], Any],
    rank: int,
    size: int,
    pipe: Connection,
    folder: str,
    timeout: float,
    deterministic: bool,
    board: memoryview,
    generator: Any,
) -> None:
    torch.set_num_threads(1)  # first of all: the parent's OpenMP threads do not exist here
    random.setstate(generator)  # Python seeds it anew after a fork; torch and numpy go on where the parent stood
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent forwards what it wants known
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # and its handlers are not ours
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    comm = None
    try:
        from ..comm.process import ProcessComm

        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are here: the host's name need not be looked up
        store, control_store = dist.FileStore(f"{folder}/rendezvous"), FolderStore(folder)
        comm = ProcessComm.join(
            store, rank, size, timeout=timeout, deterministic=deterministic, control_store=control_store, board=board
        )
        set_current(comm)
        # Plain pickle: multiprocessing would hand over tensors as shared memory, which ends with this process.
        result = function(comm)
        barrier(comm)  # nobody leaves while another still reads from its memory
        pipe.send_bytes(pickle.dumps(("done", result)))
        comm.close()
    except BaseException as error:
        step = getattr(error, "step", None)
        report = {
            "type": type(error).__name__,
            "text": str(error),
            "trace": traceback.format_exc(),
            "step": step if isinstance(step, int) else getattr(comm, "step", 0),
            "victim": isinstance(error, PeerLost),
            "blames": getattr(error, "rank", None),
        }
        pipe.send_bytes(pickle.dumps(("failed", report)))
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
                kind, value = pickle.loads(pipes[rank].recv_bytes())
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
    """The error to raise: a culprit before a victim, then whoever spoke first; later ones miss those who spoke before."""
    rank = min(failures, key=lambda r: failures[r]["victim"])
    found = failures[rank]
    cls = getattr(errors, found["type"], None)
    if isinstance(cls, type) and issubclass(cls, errors.UserError):
        error: Exception = cls(found["text"])
    elif isinstance(cls, type) and issubclass(cls, WorkerError):
        blamed = found["blames"] if found["blames"] is not None else rank
        error = cls(found["text"], blamed, found["step"])
    else:
        error = WorkerError(
            f"worker {rank} failed at step {found['step']}: {found['type']}: {found['text']}", rank, found["step"]
        )
    error.remote_traceback = found["trace"]  # type: ignore[attr-defined]
    return error


def forward_signals(children: list[Any]) -> Callable[[], None]:
    """Pass Ctrl-C and SIGTERM on to `children` as SIGUSR1 and SIGTERM; a function that undoes it."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None  # Python lets the main thread alone handle signals

    def handler(number: int, frame: Any) -> None:
        if number == signal.SIGINT and getattr(handler, "again", False):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        handler.again = True  # type: ignore[attr-defined]
        for child in children:
            if child.is_alive():
                os.kill(child.pid, signal.SIGUSR1 if number == signal.SIGINT else signal.SIGTERM)

    before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}

    def undo() -> None:
        for n, old in before.items():
            signal.signal(n, old)

    return undo
