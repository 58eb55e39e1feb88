"""Starts workers of any kind: virtual, forked processes, or those that torchrun has started already."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..comm.base import Comm, barrier
from ..comm.current import set_current
from ..comm.membership import Elasticity
from ..core.device import chosen_device
from ..core.errors import UserError, WorkerError
from ..core.stop import Stop
from ..core.torchrun import MOST_WORKERS, under_torchrun, world_size
from ..simulate.cluster import Cluster
from .signals import stop_on_signals

if TYPE_CHECKING:
    from ..comm.virtual_membership import Change


def check_cluster(cluster: Cluster, workers: int, *, virtual: bool, elastic: bool) -> None:
    """Can this number of workers be those of the cluster? Some of its workers may join an elastic run later."""
    if cluster.size != workers and not (elastic and cluster.size > workers):
        raise UserError(f"the cluster describes {cluster.size} workers and the run has {workers}: make them equal")
    if not virtual:
        raise UserError("a described cluster is simulated: pass virtual=True (--virtual) with it")


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
    elastic: Elasticity | str | int | None = None,
    changes: Sequence[Change] = (),
    announce: Callable[[str, Any], None] | None = None,
    leave: Stop | None = None,
    device: torch.device | str | None = None,
) -> list[Any]:
    """Run `function(comm)` on every worker; results by rank (under torchrun: that of this process alone).

    `virtual` runs all workers inside this process, one at a time. Otherwise the workers are torchrun's processes under
    torchrun, and forked local processes elsewhere.

    device: where the workers' models will be. Processes then join a group that can send its tensors, and each has a
        device of its own as the current one, in turn; left out, GPUs are used where there are any.
    elastic: "MIN:MAX" lets workers come and go (see `eq.attach`); results are of those that came to the end.
    changes: of virtual workers, as planned. announce: is told at which address others can join, and given the store
        of the run. leave: is set where SIGTERM asks one worker to leave; it stops them all where it is None.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers = {workers}: from 1 to {MOST_WORKERS:,} are possible")
    if not timeout > 0:
        raise UserError(f"timeout = {timeout}: must be above zero")
    if cluster is not None:
        check_cluster(cluster, workers, virtual=virtual, elastic=elastic is not None)
    if virtual and world_size() > 1:
        raise UserError(
            f"torchrun has started {world_size()} processes, and each of them would train {workers} virtual workers of "
            "its own: leave out virtual=True (--virtual), so that the workers are those of torchrun, or start the "
            "program with python"
        )
    stop = stop or Stop()
    device = chosen_device(device) if device is not None else None
    if elastic is not None and not isinstance(elastic, Elasticity):
        elastic = Elasticity.parse(elastic, workers)
    how: dict[str, Any] = {"timeout": timeout, "deterministic": deterministic, "device": device}
    if virtual and elastic is not None:
        return _run_virtual_members(function, workers, elastic, changes, cluster, threads, stop)
    if elastic is not None:
        stops = stop, leave or stop
        return _run_elastic(function, workers, elastic, stops, announce, **how)
    if virtual or (workers == 1 and not under_torchrun()):
        return _run_virtual(function, workers, cluster, threads, stop)
    if under_torchrun():
        from ..comm.process import ProcessComm

        comm = ProcessComm.from_env(timeout=timeout, deterministic=deterministic, device=device)
        set_current(comm)
        try:
            with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
                result = function(comm)
                barrier(comm)  # rank 0 may host the store that the others still use
                return [result]
        except BaseException as error:
            comm.leave_word(error)
            raise
        finally:
            set_current(None)
            comm.close()
    from .local import forward_signals, run_processes

    child = functools.partial(_until_stopped, stop, function)
    children: list[Any] = []
    undo = forward_signals(children)
    try:
        return run_processes(child, workers, children=children, **how)
    finally:
        undo()


def _until_stopped(stop: Stop, function: Callable[[Comm], Any], comm: Comm) -> Any:
    with stop_on_signals(stop, (signal.SIGUSR1, signal.SIGTERM)):
        return function(comm)


def _run_elastic(
    function: Callable[[Comm], Any],
    workers: int,
    elastic: Elasticity,
    stops: tuple[Stop, Stop],
    announce: Callable[[str, Any], None] | None,
    **how: Any,  # timeout, deterministic, device
) -> list[Any]:
    """Workers that may come and go: this process, where it joins a run or is torchrun's, or forked ones."""
    from . import take_part
    from .elastic import ElasticLauncher
    from .local import forward_signals

    stop, leave = stops
    address = os.environ.get(take_part.JOIN)
    if address is None and not under_torchrun():

        def child(comm: Comm) -> Any:
            with stop_on_signals(stop, (signal.SIGUSR1, signal.SIGUSR2)), stop_on_signals(leave, (signal.SIGTERM,)):
                return function(comm)

        children: list[Any] = []
        launcher = ElasticLauncher(child, elastic, children=children, **how)
        undo = forward_signals(children, terminate=signal.SIGUSR2)
        try:
            return launcher.run(workers, announce)
        finally:
            undo()
    size: int | None = None
    if address is not None:
        store, worker, elastic = take_part.joining(address, how["timeout"])
    else:
        store, worker, size = take_part.started(how["timeout"], elastic)
    if announce is not None and size is not None and worker == 0:
        announce(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", store)
    with stop_on_signals(stop, (signal.SIGINT,)), stop_on_signals(leave, (signal.SIGTERM,)):
        return [take_part.take_part(function, store, worker, elastic, size=size, **how)]


def _run_virtual_members(
    function: Callable[[Comm], Any],
    workers: int,
    elastic: Elasticity,
    changes: Sequence[Change],
    cluster: Cluster | None,
    threads: int | None,
    stop: Stop,
) -> list[Any]:
    from ..comm.virtual_membership import VirtualMembers

    notice = 0.0 if cluster is None else cluster.detection
    members = VirtualMembers(workers, elastic, changes, cluster, notice)
    with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        results = members.run(_with_current(function), threads=threads or 1)
    if not results:
        raise WorkerError("all workers were lost: " + "; ".join(str(lost) for lost in members.lost.values()))
    return list(results.values())


def _with_current(function: Callable[[Comm], Any]) -> Callable[[Comm], Any]:
    """The function, with its comm as the current one of its thread."""

    def work(comm: Comm) -> Any:
        set_current(comm)
        try:
            return function(comm)
        finally:
            set_current(None)

    return work


def _run_virtual(
    function: Callable[[Comm], Any], workers: int, cluster: Cluster | None, threads: int | None, stop: Stop
) -> list[Any]:
    from ..comm.virtual import World

    # A single worker may use all cores; several use one thread each, as processes do, for the same numbers.
    count = threads or (torch.get_num_threads() if workers == 1 else 1)
    with stop_on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        return World(workers, cluster).run(_with_current(function), threads=count)
