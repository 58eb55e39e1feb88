"""A process that takes part in an elastic run: one of the first workers, or one that joins later."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..comm.base import Comm, barrier
from ..comm.current import set_current
from ..comm.interfaces import use_interface_of_launcher, use_interface_to
from ..comm.membership import Elasticity
from ..core.errors import Drift, NonFinite, UserError, WorkerError
from .local import use_loopback

if TYPE_CHECKING:
    import torch

    from ..comm.membership_store import StoreMembership

JOIN = "EQUIPOISE_JOIN"  # HOST:PORT of the run that this process joins
PREFIX = "equipoise/elastic"
_CURRENT = f"{PREFIX}/current"  # in the store: the prefix of the run


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and 0 <= int(port) < 65536):
        raise UserError(f"{address!r} is no address: write HOST:PORT")
    return host, int(port)


def connect(address: str, timeout: float) -> Any:
    """The store of the run at this address."""
    from torch._C._distributed_c10d import TCPStore

    host, port = split(address)
    try:
        # Tried first: a TCPStore retries for a long time, and prints what it calls a stack trace.
        socket.create_connection((host, port), timeout=min(timeout, 10.0)).close()
        return TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=timeout))
    except Exception as error:
        raise UserError(f"no run answers at {address}: {str(error).splitlines()[0]}") from None


def joined_run(store: Any, address: str) -> Any:
    """The part of a store that belongs to the elastic run in it."""
    from torch.distributed.distributed_c10d import PrefixStore

    if not store.check([_CURRENT]):
        raise UserError(f"the run at {address} is not elastic: start it with --elastic MIN:MAX")
    return PrefixStore(store.get(_CURRENT).decode(), store)


def joins_a_run() -> bool:
    """Was this process started to join a run?"""
    return JOIN in os.environ


def fingerprint_of_the_run(timeout: float) -> dict[str, Any]:
    """The choices of the run that this process joins."""
    address = os.environ[JOIN]
    stored: dict[str, Any] = json.loads(joined_run(connect(address, timeout), address).get("fingerprint"))
    return stored


def own_run(store: Any, number: str, begins: tuple[Elasticity, int] | None = None) -> Any:
    """A part of a store for an elastic run; one process `begins` it, with so many workers."""
    from torch.distributed.distributed_c10d import PrefixStore

    prefix = f"{PREFIX}/{number}"
    run = PrefixStore(prefix, store)
    if begins is not None:
        elasticity, size = begins
        run.set("elastic", json.dumps(dataclasses.asdict(elasticity)))
        run.add("ids", size)
        store.set(_CURRENT, prefix)
    return run


def joining(address: str, timeout: float) -> tuple[Any, int, Elasticity]:
    """Store and number of a process that joins a run, and what the run allows."""
    store = joined_run(connect(address, timeout), address)
    host, _ = split(address)
    if host not in ("127.0.0.1", "localhost"):
        use_interface_to(host)
    else:
        use_loopback()
    return store, store.add("ids", 1) - 1, Elasticity(**json.loads(store.get("elastic")))


def started(timeout: float, elasticity: Elasticity) -> tuple[Any, int, int]:
    """Store, number and world size of a process that torchrun has started."""
    global _started
    from torch.distributed import is_initialized
    from torch.distributed.rendezvous import rendezvous

    if is_initialized():
        raise UserError("an elastic run makes its own process groups: leave out init_process_group")
    use_interface_of_launcher()
    store, rank, size = next(rendezvous("env://", timeout=datetime.timedelta(seconds=timeout)))
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    _started += 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    run = own_run(store, f"{attempt}/{_started}", (elasticity, size) if rank == 0 else None)
    return run, rank, size


_started = 0  # elastic runs of this process: torchrun's store still has the keys of earlier ones


def take_part(
    function: Callable[[Comm], Any],
    store: Any,
    worker: int,
    elasticity: Elasticity,
    *,
    size: int | None,
    timeout: float,
    deterministic: bool,
    launched: Any = None,
    device: torch.device | None = None,
) -> Any:
    """`function(comm)` as this worker. `size`: of the first generation, for a worker that begins with it."""
    options = {"size": size, "timeout": timeout, "deterministic": deterministic, "launched": launched, "device": device}
    with membership_of(store, worker, elasticity, **options) as membership:
        return function(membership.comm)


@contextlib.contextmanager
def membership_of(
    store: Any,
    worker: int,
    elasticity: Elasticity,
    *,
    size: int | None,
    timeout: float,
    deterministic: bool,
    launched: Any = None,
    device: torch.device | None = None,
) -> Iterator[StoreMembership]:
    """The membership of this process, for as long as it takes part."""
    from ..comm.membership_store import StoreMembership
    from ..comm.virtual import VirtualComm, World

    world = World(1)
    membership = StoreMembership(
        store,
        worker,
        elasticity,
        VirtualComm(world, world.workers[0]),
        timeout=timeout,
        deterministic=deterministic,
        launched=launched,
        device=device,
    )
    over = False
    try:
        set_current(membership.begin(size) if size is not None else membership.comm)
        yield membership
        over = True
        with contextlib.suppress(WorkerError):
            barrier(membership.comm)  # another worker may still read from the memory of this one
    except (UserError, NonFinite, Drift) as error:
        membership.refuse(str(error))
        raise
    finally:
        set_current(None)
        membership.close(over=over)


@contextlib.contextmanager
def elastic_comm(comm: Comm, limits: Any, deadline: float) -> Iterator[Comm]:
    """The comm of a process whose own loop becomes elastic: torchrun has started it, or it joins a run."""
    from ..core.torchrun import under_torchrun

    address = os.environ.get(JOIN)
    if address is None and not under_torchrun():
        raise UserError("elastic needs several workers: start them with torchrun, or with eq.spawn(elastic=...)")
    timeout, deterministic = getattr(comm, "timeout", 300.0), getattr(comm, "deterministic", False)
    size: int | None = None
    if address is not None:
        store, worker, elasticity = joining(address, timeout)
    else:
        elasticity = limits if isinstance(limits, Elasticity) else Elasticity.parse(limits, comm.size, deadline)
        comm.close()
        store, worker, size = started(timeout, elasticity)
    with membership_of(store, worker, elasticity, size=size, timeout=timeout, deterministic=deterministic) as member:
        yield member.comm
