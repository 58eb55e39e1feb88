"""Workers as processes on torch.distributed, under torchrun or the local launcher; see `routes` for devices."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..core.device import assumed
from ..core.errors import PeerLost, UnevenSteps, UserError, WorkerError
from .base import Comm, Pending, Stream
from .connections import address_of, limit_waits
from .diagnosis import StoreLost, find_missing
from .fused_reduction import FusedReduction, reduce_over_network
from .heartbeat import Heartbeat
from .interfaces import use_interface_of_launcher
from .last_word import LOST, error_of, first_line, word_of
from .leaving import leave_together, refuse_uneven
from .notices import GlooNotices
from .presence import Presence
from .routes import Routes, StagedExchange, backends_for, backends_of, host_group_of, host_memory, on_host_memory
from .segment import Segment
from .shared_memory import Expected, SharedMemory
from .unhandled import report_unhandled

_TIMEOUT = 300.0  # seconds
_BLOCK = 1 << 20  # elements summed at once in rank order: bounds the memory

_joined = 0  # groups that this process has joined: torchrun's store still has the keys of earlier ones


def _control_store(store: Any, timeout: float) -> Any:
    """A store for the heartbeats and counters of this group alone, on a separate connection."""
    global _joined
    _joined += 1
    return _cloned(f"equipoise/{_joined}/control", store, timeout)


def _cloned(prefix: str, store: Any, timeout: float) -> Any:
    own = store.clone()
    limit_waits(own, timeout)
    return PrefixStore(prefix, own)


def join_group(store: Any, rank: int, size: int, timeout: float, device: torch.device | None = None) -> None:
    """Make the process group of torch.distributed. device: where models will be (left out: on a GPU, if any)."""
    backend = backends_for(assumed(device, rank).type)
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)


class ProcessComm(Comm):
    """The comm of one process. `deterministic` sums in rank order, bit for bit as virtual workers do."""

    virtual = False

    def __init__(
        self,
        *,
        timeout: float = _TIMEOUT,
        deterministic: bool = False,
        heartbeat: Heartbeat | None = None,
        steps: Any = None,
        presence: Presence | None = None,
        group: dist.ProcessGroup | None = None,
    ):
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._group = group  # of torch.distributed; None: all of its processes
        self._host_group = host_group_of(group)  # for tensors of the CPU, and objects
        self._routes = Routes(self.rank, backends_of(group))
        self._ranks = dist.get_process_group_ranks(group)  # what torch.distributed calls the workers
        self.deterministic = deterministic
        self.timeout = timeout
        self._steps = steps  # shared memory in which the launcher reads each worker's step
        self._step = 0
        self._loops = 0  # that have ended
        self._owner = False  # did this object make the process group? Then it ends it
        self._heartbeat = heartbeat  # names a missing worker; in an elastic run the next roster does
        self._pulse = heartbeat if presence is None else presence  # where this worker publishes its position
        given_up = bool if presence is None else lambda: presence.broken
        notices = GlooNotices(self._host_group)
        self._shared = SharedMemory(self.rank, self.size, self.gather_objects, timeout, given_up, notices)

    @classmethod
    def from_env(
        cls, *, timeout: float = _TIMEOUT, deterministic: bool = False, device: torch.device | None = None
    ) -> ProcessComm:
        """Join the group that torchrun's environment describes, unless the program has joined one already."""
        if dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()
            while hasattr(store, "underlying_store"):
                store = store.underlying_store
            heartbeat = None
            if hasattr(store, "clone"):
                heartbeat = Heartbeat(_control_store(store, timeout), dist.get_rank(), dist.get_world_size())
            comm = cls(timeout=timeout, deterministic=deterministic, heartbeat=heartbeat)
            report_unhandled(comm)
            return comm
        use_interface_of_launcher()
        try:
            store, rank, size = next(rendezvous("env://", timeout=datetime.timedelta(seconds=timeout)))
        except Exception as error:
            host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
            raise UserError(
                f"cannot reach the other workers at {host}:{port}: {str(error).splitlines()[0]}. If the port is in "
                "use, give torchrun another --master-port (or --standalone, which finds a free one)"
            ) from error
        comm = cls.join(store, rank, size, timeout=timeout, deterministic=deterministic, device=device)
        report_unhandled(comm)
        return comm

    @classmethod
    def of_group(cls, group: dist.ProcessGroup) -> ProcessComm:
        """The workers are the processes of a group that the program made."""
        store = dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        heartbeat = None
        if hasattr(store, "clone"):
            own = _cloned(f"equipoise/group/{group.group_name}/control", store, _TIMEOUT)
            heartbeat = Heartbeat(own, dist.get_rank(group), dist.get_world_size(group))
        comm = cls(timeout=_TIMEOUT, heartbeat=heartbeat, group=group)
        report_unhandled(comm)
        return comm

    @classmethod
    def join(
        cls,
        store: Any,
        rank: int,
        size: int,
        *,
        timeout: float,
        deterministic: bool,
        control_store: Any = None,
        steps: Any = None,
        device: torch.device | None = None,
    ) -> ProcessComm:
        """Join a group through a store that all workers reach; heartbeats and counters use `control_store` if given."""
        control_store = control_store or _control_store(store, timeout)
        # Before the group: a worker that is lost while it is made is named too.
        heartbeat = Heartbeat(control_store, rank, size)
        heartbeat.inside += 1
        try:
            join_group(PrefixStore(f"equipoise/{_joined}", store), rank, size, timeout, device)
        except RuntimeError as error:
            lost = peer_lost(heartbeat, error, f"while the group was made (timeout {timeout:g} s)")
            heartbeat.close()
            raise lost from error
        heartbeat.inside -= 1
        comm = cls(timeout=timeout, deterministic=deterministic, heartbeat=heartbeat, steps=steps)
        comm._owner = True
        return comm

    @property
    def now(self) -> float:
        return 0.0

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        """Published at once: a worker may die before it communicates again."""
        self._step = value
        if self._pulse is not None:
            self._pulse.step = value
        if self._steps is not None:
            self._steps[self.worker] = value

    def computed(self, examples: float) -> float:
        return 0.0

    @contextlib.contextmanager
    def _guard(self, call: str) -> Iterator[None]:
        """Turn a failed call into an error that names the missing worker; record its seconds."""
        pulse = self._pulse
        if pulse is not None:
            pulse.calls += 1
            pulse.inside += 1
        began = time.perf_counter()
        try:
            yield
            if self.ledger.counting and call != "gather_objects":
                spent = time.perf_counter() - began
                self.ledger.communicate += spent
                self.ledger.unattributed += spent  # the loop separates waiting from it at control points
        # An OSError: the memory of a process that is gone cannot be mapped.
        except (RuntimeError, OSError) as error:
            waited = time.perf_counter() - began
            raise self._diagnosis(call, error, waited) from error
        finally:
            if pulse is not None:
                pulse.inside -= 1

    def _busy(self, change: int) -> None:
        if isinstance(self._pulse, Presence):
            self._pulse.busy += change

    def _diagnosis(self, call: str, error: Exception, waited: float) -> WorkerError:
        patience = f" (timeout {self.timeout:g} s)" if waited > 0.9 * self.timeout else ""
        where = f"in {call} at step {self.step}{patience}"
        if self._heartbeat is None:
            return PeerLost(f"worker {self.rank} lost the others {where}: {first_line(error)}")
        return peer_lost(self._heartbeat, error, where)

    def use_device(self, device: torch.device) -> None:
        self._routes.agree(device, self.gather_objects)

    def _group_of(self, tensor: torch.Tensor) -> dist.ProcessGroup | None:
        return self._host_group if tensor.device.type == "cpu" else self._group

    def _sum(self, tensor: torch.Tensor) -> None:
        if self._routes.staged(tensor):
            self._routes.through_host(self._sum, tensor)
            return
        with self._guard("sum"), torch.no_grad():
            if self._shared.sums(tensor.numel() * tensor.element_size(), tensor.device):
                self._shared.sum(tensor)
                return
            if not self.deterministic:
                dist.all_reduce(tensor, group=self._group_of(tensor))
                return
            for block in torch.split(tensor.view(-1), _BLOCK):
                self._sum_in_rank_order(block)

    def _sum_stream(self, stream: Stream) -> None:
        if not self._shared.sums(stream.elements * stream.dtype.itemsize, stream.device):
            self._sum_as_vector(stream)
            return
        with self._guard("sum"):
            self._shared.sum_stream(stream)

    def _weighted_mean(self, message: torch.Tensor) -> float:
        if self._routes.staged(message):
            of_all: float = self._routes.through_host(self._weighted_mean, message)
            return of_all
        self._sum(message)
        total = message[-1].item()
        if total:
            message.div_(total)
        return total

    def _fused_sum(self, tensor: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]:
        with self._guard("sum"), torch.no_grad():
            if tensor.device.type == "cpu" and self._shared.all_local:
                return self._shared.fused_sum(tensor, reduction)
            return reduce_over_network(tensor, reduction, self.rank, self.size, self._all_to_all)

    def _sum_in_rank_order(self, block: torch.Tensor) -> None:
        """A reduce-scatter in which every worker sums one chunk in rank order, then an all-gather of the chunks."""
        sizes = [block.numel() // self.size + (r < block.numel() % self.size) for r in range(self.size)]
        own = sizes[self.rank]
        parts = block.new_empty(own * self.size)
        self._all_to_all(parts, block, [own] * self.size, sizes)
        rows = parts.view(self.size, own)
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        self._all_to_all(block, total.repeat(self.size), sizes, [own] * self.size)

    def _all_to_all(self, received: torch.Tensor, sent: torch.Tensor, into: list[int], out_of: list[int]) -> None:
        if self._routes.staged(sent):
            arrived = host_memory(len(received), received.dtype)
            self._all_to_all(arrived, on_host_memory(sent), into, out_of)
            received.copy_(arrived)
            return
        dist.all_to_all_single(received, sent, into, out_of, group=self._group_of(sent))

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._routes.staged(tensor):
            return self._gather(on_host_memory(tensor).view(tensor.shape)).to(tensor.device)
        with self._guard("gather"), torch.no_grad():
            if tensor.device.type == "cpu" and self._shared.all_local and tensor.numel():
                return self._shared.gather(tensor.detach())
            out = tensor.new_empty((self.size, *tensor.shape))
            dist.all_gather(list(out.unbind(0)), tensor.detach().contiguous(), group=self._group_of(tensor))
        return out

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        if self._routes.staged(tensor):
            self._routes.through_host(lambda host: self._broadcast(host, source), tensor)
            return
        with self._guard("broadcast"), torch.no_grad():
            dist.broadcast(tensor, self._ranks[source], group=self._group_of(tensor))

    def gather_objects(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        if self.size == 1:
            return [value]
        with self._guard("gather_objects"):
            dist.all_gather_object(values, value, group=self._host_group)
        return values

    def leave_loop(self, steps: int) -> None:
        self._loops += 1
        if self._heartbeat is None:
            refuse_uneven(dict(enumerate(self.gather_objects(steps))))
            return
        try:
            if not leave_together(self._heartbeat, self._loops, steps, self.timeout):
                raise self._diagnosis("the end of the loop", RuntimeError("timed out"), self.timeout)
        except UnevenSteps as error:
            self.leave_word(error)
            raise

    def leave_word(self, error: BaseException) -> None:
        if self._heartbeat is not None:
            self._heartbeat.end(word_of(error))

    def counter(self, name: str, add: int) -> int:
        with self._guard("counter"):
            assert self._pulse is not None, "a counter needs the store of the process group"
            return int(self._pulse.store.add(f"equipoise/counter/{name}", add))

    def copies(self, tensor: torch.Tensor, peers: Iterable[int]) -> bool:
        return self._routes.staged(tensor) or all(self._shared.reaches(peer, tensor) for peer in peers)

    def _exchange(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> Pending:
        if any(self._routes.staged(tensor) for tensor in (*outgoing.values(), *incoming.values())):
            return StagedExchange(self._exchange, outgoing, incoming)
        shared = self._shared
        local = {peer: t for peer, t in sorted(incoming.items()) if shared.reaches(peer, t)}
        remote = [self._transfer(dist.irecv, t, peer) for peer, t in sorted(incoming.items()) if peer not in local]
        written: dict[int, Segment] = {}
        with self._guard("exchange"), torch.no_grad():
            expected = {peer: shared.expect(peer, tensor) for peer, tensor in local.items()}
            sends: list[Callable[[], Any]] = []  # waits for them
            for peer, tensor in sorted(outgoing.items()):
                if not shared.reaches(peer, tensor):
                    remote.append(self._transfer(dist.isend, tensor, peer))
                    continue
                if id(tensor) not in written:
                    written[id(tensor)] = shared.write(tensor)
                sends.append(shared.announce(written[id(tensor)], peer))
            sends += [work.wait for work in _start(remote)]
        return _ProcessExchange(self, incoming, sends, expected, list(written.values()))

    def _transfer(self, operation: Callable[..., Any], tensor: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(operation, tensor, self._ranks[peer], self._group_of(tensor))

    def configure(self, *, timeout: float | None = None, deterministic: bool | None = None) -> None:
        if deterministic is not None:
            self.deterministic = deterministic
        if timeout is not None:
            self.timeout = timeout
            self._shared.set_timeout(timeout)
            if self._heartbeat is not None:
                limit_waits(self._heartbeat.store, timeout)
            for group in {self._group, self._host_group}:
                dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout), group)

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
        if self._owner and dist.is_initialized():
            dist.destroy_process_group()


def peer_lost(heartbeat: Heartbeat, error: Exception, where: str) -> WorkerError:
    """The error that names the missing worker. where: the call in which this one noticed."""
    own = heartbeat.rank
    try:
        missing = find_missing(heartbeat, closed="onnection" in str(error))
    except StoreLost:
        return PeerLost(
            f"worker {own} lost the others {where}, and the store at {address_of(heartbeat.store)} does not answer: "
            "is this host cut off, or the one that holds the store gone?"
        )
    if missing is None:
        heartbeat.end(word_of(error))
        return PeerLost(f"worker {own} lost the others {where}: {first_line(error)}")
    if (theirs := error_of(missing.status)) is not None:
        return theirs
    heartbeat.end(LOST)
    found = f"worker {missing.rank} {missing.status}, last seen at step {missing.step}"
    if missing.rank == own:
        found = f"the other workers have given up this one: {found}"
    else:
        found += f"; worker {own} gave up waiting for it {where}"
    return PeerLost(found, missing.rank, missing.step)


def _start(operations: list[dist.P2POp]) -> list[Any]:
    """The works of sends and receives. Only nccl needs them as a batch; for gloo the checks of one cost time."""
    if any(operation.tensor.device.type != "cpu" for operation in operations):
        return dist.batch_isend_irecv(operations)
    return [operation.op(operation.tensor, operation.peer, operation.group) for operation in operations]


class _ProcessExchange(Pending):
    def __init__(
        self,
        comm: ProcessComm,
        incoming: Mapping[int, torch.Tensor],
        sends: list[Callable[[], Any]],
        expected: dict[int, Expected],
        written: list[Segment],
    ):
        super().__init__(incoming)
        self.comm, self.sends, self.expected, self.written = comm, sends, expected, written
        self.arrived = False
        self.borrowed: list[int] = []  # peers whose message is read in their memory

    def arrive(self) -> Mapping[int, torch.Tensor]:
        if self.arrived:
            return {}  # gloo would wait for a second message
        self.arrived = True
        messages = dict(self.incoming)
        with self.comm._guard("exchange"), torch.no_grad():
            for peer, expected in self.expected.items():
                message = self.comm._shared.read(peer, expected)
                if message is not expected.out:
                    messages[peer] = message
                    self.borrowed.append(peer)
            # gloo gives one Work per operation and nccl one for all: wait on every element.
            for wait in self.sends:
                wait()
        for segment in self.written:
            segment.in_flight = False
        return messages

    def release(self) -> None:
        borrowed, self.borrowed = self.borrowed, []
        with self.comm._guard("exchange"):
            for peer in borrowed:
                self.comm._shared.release(peer)
