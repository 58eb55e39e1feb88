"""Workers as forked local processes: four of them start in a fraction of a second.

The rendezvous is a folder that the parent makes and removes: no port has to be free, and no host name is looked up. The
parent watches its children and reports which one failed first.
"""

from __future__ import annotations

import mmap
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
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import FileStore

from ..comm.base import Comm, barrier
from ..comm.current import set_current
from ..comm.folder_store import FolderStore
from ..core import errors
from ..core.errors import PeerLost, WorkerError
from ..core.random import rng_state
from .afresh import Afresh, context_for, packed, used_here

_GRACE = 5.0  # seconds that survivors get to report, once one worker has failed


def run_processes(
    function: Callable[[Comm], Any],
    workers: int,
    *,
    timeout: float = 300.0,
    deterministic: bool = False,
    children: list[Any] | None = None,
    device: torch.device | None = None,
) -> list[Any]:
    """`function(comm)` on forked processes; results by rank. A failure is raised here and names the worker.

    `children` is filled with the processes, so that the caller can send them signals. device: where their models will
    be. Processes are not forked but started afresh where this one has used the device.
    """
    context = context_for(device)
    work: Callable[[Comm], Any] | Afresh = function
    forks = context.get_start_method() == "fork"
    pipes: list[Connection] = []
    children = [] if children is None else children
    folder = tempfile.mkdtemp(prefix="equipoise-")
    # Shared memory in which each child writes its step, so that the step of a dead one is known too.
    steps = memoryview(mmap.mmap(-1, 8 * workers)).cast("q") if forks else context.RawArray("q", workers)
    if not forks:
        work = Afresh(packed(function, used_here(device)), rng_state())
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(workers):
            ours, theirs = context.Pipe()
            options = {
                "timeout": timeout,
                "deterministic": deterministic,
                "device": None if device is None else str(device),
            }
            args = (work, rank, workers, theirs, folder, steps, random.getstate(), options)
            child = context.Process(target=_child, args=args, name=f"worker-{rank}")
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        return _collect(children, pipes, steps)
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
    work: Callable[[Comm], Any] | Afresh,
    rank: int,
    size: int,
    pipe: Connection,
    folder: str,
    steps: Any,
    python_rng: Any,
    options: dict[str, Any],
) -> None:
    begin_child(python_rng)
    comm = None
    try:
        from ..comm.process import ProcessComm

        function = work.unpacked() if isinstance(work, Afresh) else work
        device = torch.device(options["device"]) if options["device"] is not None else None
        use_loopback()
        store, control_store = FileStore(f"{folder}/rendezvous"), FolderStore(folder)
        comm = ProcessComm.join(
            store, rank, size, control_store=control_store, steps=steps, **options | {"device": device}
        )
        set_current(comm)
        result = function(comm)
        barrier(comm)  # another worker may still read from the memory of this one
        # Plain pickle: multiprocessing would send tensors as shared memory, which ends with this process.
        pipe.send_bytes(pickle.dumps(("done", result)))
        comm.close()
    except BaseException as error:
        if comm is not None:
            comm.leave_word(error)
        pipe.send_bytes(pickle.dumps(("failed", report_of(error, getattr(comm, "step", 0)))))
    finally:
        end_child()


def begin_child(python_rng: Any) -> None:
    """Make a new process a worker."""
    torch.set_num_threads(1)  # first of all: the parent's OpenMP threads do not exist here
    random.setstate(python_rng)  # Python reseeds it after a fork; torch and numpy keep the parent's state
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent forwards Ctrl-C as SIGUSR1
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # its handlers are not for this process
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def use_loopback() -> None:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this host: no name to look up


def end_child() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips the parent's exit handlers


def report_of(error: BaseException, step: int) -> dict[str, Any]:
    """An error of a worker, as its launcher needs to know it."""
    own = getattr(error, "step", None)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "trace": traceback.format_exc(),
        "step": own if isinstance(own, int) else step,
        "victim": isinstance(error, PeerLost),
        "blames": getattr(error, "rank", None),
    }


def _collect(children: list[Any], pipes: list[Connection], steps: Any) -> list[Any]:
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
                failures[rank] = death(rank, children[rank].exitcode, steps[rank])
            else:
                (results if kind == "done" else failures)[rank] = value
        if failures and deadline is None:
            deadline = time.monotonic() + _GRACE
        cause_known = any(not f["victim"] for f in failures.values())
        if failures and (cause_known or time.monotonic() > (deadline or 0.0)):
            break
    if failures:
        raise error_from(failures)
    return [results[rank] for rank in range(len(children))]


def death(rank: int, code: int | None, step: int) -> dict[str, Any]:
    """The report for a worker that ended without sending one."""
    hint = " (if you did not do that, the machine may have run out of memory)" if code == -signal.SIGKILL else ""
    message = f"worker {rank} {end_of(code)} at step {step}{hint}"
    return {"type": "WorkerError", "message": message, "trace": "", "step": step, "victim": False, "blames": rank}


def end_of(code: int | None) -> str:
    """How a process ended."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def error_from(failures: dict[int, dict[str, Any]]) -> Exception:
    """The error to raise: a cause before workers that lost a peer, then the first report.

    Later reports may name a worker that is missing only because it has reported already.
    """
    rank = min(failures, key=lambda r: failures[r]["victim"])
    report = failures[rank]
    cls = getattr(errors, report["type"], None)
    if isinstance(cls, type) and issubclass(cls, errors.UserError):
        error: Exception = cls(report["message"])
    elif isinstance(cls, type) and issubclass(cls, WorkerError):
        blamed = report["blames"] if report["blames"] is not None else rank
        error = cls(report["message"], blamed, report["step"])
    else:
        error = WorkerError(
            f"worker {rank} failed at step {report['step']}: {report['type']}: {report['message']}",
            rank,
            report["step"],
        )
    error.remote_traceback = report["trace"]  # type: ignore[attr-defined]
    return error


def forward_signals(children: list[Any], *, terminate: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Forward Ctrl-C and SIGTERM to `children` as SIGUSR1 and `terminate`; returns a function that undoes it.

    A second Ctrl-C raises KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None  # in Python only the main thread can handle signals
    interrupted = False

    def handler(number: int, frame: Any) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        interrupted = True
        for child in children:
            if child.is_alive():
                os.kill(child.pid, signal.SIGUSR1 if number == signal.SIGINT else terminate)

    before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}

    def undo() -> None:
        for n, old in before.items():
            signal.signal(n, old)

    return undo
