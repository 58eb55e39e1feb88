"""Starts workers of any kind: virtual, forked processes, or those that torchrun has started already."""

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
    """Run `function(comm)` on every worker; results by rank (under torchrun: that of this process alone).

    `virtual` runs all workers inside this process, one at a time. Otherwise the workers are torchrun's processes under
    torchrun, and forked local processes elsewhere.
    """
    if workers < 1:
        raise UserError(f"workers = {workers}: at least 1 is needed")
    if not timeout > 0:
        raise UserError(f"timeout = {timeout}: must be above zero")
    if cluster is not None and cluster.size != workers:
        raise UserError(f"the cluster describes {cluster.size} workers and the run has {workers}: make them equal")
    if cluster is not None and not virtual:
        raise UserError("a described cluster is simulated: pass virtual=True (--virtual) with it")
    stop = stop or Stop()
    if virtual or (workers == 1 and not under_torchrun()):
        return _run_virtual(function, workers, cluster, threads, stop)
    if under_torchrun():
        from ..comm.process import ProcessComm

        comm = ProcessComm.from_env(timeout=timeout, deterministic=deterministic)
        set_current(comm)
        try:
            with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
                result = function(comm)
                barrier(comm)  # rank 0 may host the store that the others still use
                return [result]
        except BaseException as error:
            comm.fail(error)
            raise
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


def _run_virtual(
    function: Callable[[Comm], Any], workers: int, cluster: Cluster | None, threads: int | None, stop: Stop
) -> list[Any]:
    import torch

    from ..comm.virtual import World

    def with_current_comm(comm: Comm) -> Any:
        set_current(comm)
        try:
            return function(comm)
        finally:
            set_current(None)

    # A single worker may use all cores; several use one thread each, as processes do, for the same numbers.
    count = threads or (torch.get_num_threads() if workers == 1 else 1)
    with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        return World(workers, cluster).run(with_current_comm, threads=count)
