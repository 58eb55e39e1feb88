"""One way to start workers, whatever they are: virtual, forked, or what torchrun has started already."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from ..comm.base import Comm, barrier
from ..comm.current import set_current
from ..core.errors import UserError
from ..core.stop import Stop
from ..core.torchrun import under_torchrun
from ..simulate.cluster import Cluster
from .signals import stop_on_signals


def spawn(
    function: Callable[[Comm], Any],
    workers: int = 1,
    *,
    virtual: bool = False,
    cluster: Cluster | None = None,
    timeout: float = 300.0,
    deterministic: bool = False,
    threads: int | None = None,
    stop: Stop | None = None,
) -> list[Any]:
    """Run `function(comm)` on every worker; their results by rank (under torchrun: this process's alone).

    `virtual` runs all workers inside this process, one at a time. Otherwise torchrun's processes are used where there
    are any, and local processes are forked where there are none.
    """
    if workers < 1:
        raise UserError(f"workers = {workers}: at least 1 is needed")
    if not timeout > 0:
        raise UserError(f"timeout = {timeout}: must be above zero")
    if cluster is not None and cluster.size != workers:
        raise UserError(f"the cluster describes {cluster.size} workers and the run has {workers}: make them equal")
    if cluster is not None and not virtual:
        raise UserError("a described cluster is simulated: pass --virtual with --cluster")
    stop = stop or Stop()
    if virtual or (workers == 1 and not under_torchrun()):
        return _virtual(function, workers, cluster, threads, stop)
    if under_torchrun():
        from ..comm.process import ProcessComm

        comm = ProcessComm.from_env(timeout=timeout, deterministic=deterministic)
        set_current(comm)
        try:
            with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
                result = function(comm)
                barrier(comm)  # worker 0 may host the store that the others still use
                return [result]
        finally:
            set_current(None)
            comm.close()
    from .local import forward_signals, run_processes

    def child(comm: Comm) -> Any:
        with stop_on_signals(stop, (signal.SIGUSR1, signal.SIGTERM)):
            return function(comm)

    children: list[Any] = []
    undo = forward_signals(children)
    try:
        return run_processes(child, workers, timeout=timeout, deterministic=deterministic, children=children)
    finally:
        undo()


def _virtual(
    function: Callable[[Comm], Any], workers: int, cluster: Cluster | None, threads: int | None, stop: Stop
) -> list[Any]:
    import torch

    from ..comm.virtual import World

    def one(comm: Comm) -> Any:
        set_current(comm)
        try:
            return function(comm)
        finally:
            set_current(None)

    # A single worker may use the whole machine; many use one thread each, as processes do, for the same numbers.
    count = threads or (torch.get_num_threads() if workers == 1 else 1)
    with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        return World(workers, cluster).run(one, threads=count)
