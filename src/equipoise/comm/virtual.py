"""N workers inside one process: threads that run one at a time (see `scheduler`). Sums are taken in rank order."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from ..core.errors import PeerLost, WorkerError
from ..simulate.cluster import Cluster, Traffic
from ..simulate.failures import FailureModel
from ..simulate.spells import Spell
from .base import Comm, Pending, Stream
from .fused_reduction import FusedReduction, fused_cost, reduce_in_memory
from .leaving import refuse_uneven
from .scheduler import LEAVES, Abort, Scheduler, VirtualWorker, raise_if_uneven

_BLOCK = 1 << 15  # elements summed at once: fits in the cache of a core
Part = TypeVar("Part")  # what one worker brings to a collective
Result = TypeVar("Result")  # what one worker receives from it


class World:
    """What virtual workers share: the scheduler, the cluster, messages in flight, and the current collective."""

    def __init__(
        self,
        size: int,
        cluster: Cluster | None = None,
        scheduler: Scheduler | None = None,
        workers: list[VirtualWorker] | None = None,
    ):
        self.cluster = cluster or Cluster.uniform(size)
        assert self.cluster.size == size
        self.size = size
        self.scheduler = scheduler or Scheduler(size, self.cluster.described)
        self.workers = self.scheduler.workers if workers is None else workers  # by rank
        self.broken: PeerLost | None = None  # a worker was lost: no call of this world can end,
        self.noticed = 0.0  # as its workers know from this simulated second on
        self.collective = ""  # the call that workers are in
        self.arrived: dict[int, Any] = {}  # what each worker brought to it, by rank
        # Messages by source, target and number, with their departure and arrival.
        self.mail: dict[tuple[int, int, int], tuple[torch.Tensor, float, float]] = {}
        self.sent: Counter[tuple[int, int]] = Counter()  # messages so far from a source to a target,
        self.requested: Counter[tuple[int, int]] = Counter()  # and how many of them the target has asked for
        self.traffic = Traffic(self.cluster)
        self.counters: dict[str, int] = {}

    def run(self, function: Callable[[Comm], Any], *, threads: int = 1) -> list[Any]:
        """`function(comm)` on every worker; results by rank. The first failure ends all workers and is raised here."""
        return self.scheduler.run(lambda worker: function(VirtualComm(self, worker)), threads=threads)


class VirtualComm(Comm):
    """The comm of one virtual worker."""

    virtual = True

    def __init__(self, world: World, worker: VirtualWorker):
        super().__init__(world.workers.index(worker), world.size)
        self._world, self._worker = world, worker
        self.described = world.cluster.described
        self._failures: FailureModel | None = None  # made at the first use, when the seed of the run is known
        self.after_compute: Callable[[], None] | None = None  # where the virtual membership ends a worker
        self.leave: Callable[[Spell], None] | None = None  # likewise, at a failure; None: the others wait for it
        worker.ledger = self.ledger

    @property
    def now(self) -> float:
        return self._worker.now

    @now.setter
    def now(self, value: float) -> None:
        self._worker.now = value

    def _refuse_broken(self) -> None:
        """A comm of a world that has lost a worker is of no further use."""
        if self._worker.lost:
            raise Abort
        interrupted, self._worker.interrupted = self._worker.interrupted, False
        broken = self._world.broken
        if broken is not None:
            noticed = max(self._world.noticed, self.now)
            self._worker.wait_until(noticed, noticed)
            raise PeerLost(str(broken), broken.rank, broken.step)
        assert not interrupted, "a worker was interrupted and its world is whole"

    def _switch(self) -> None:
        """Hand over; where this worker had to wait, what it waited for has come, or it never will."""
        self._world.scheduler.switch(self._worker)
        if self._worker.interrupted:
            self._refuse_broken()

    def computed(self, examples: float) -> float:
        seconds = self._compute(examples)
        if self.after_compute is not None and self.ledger.counting:
            self.after_compute()
        return seconds

    def _compute(self, examples: float) -> float:
        world, me = self._world, self._worker
        seconds = world.cluster.compute(self.rank, examples)
        if not me.described:
            me.now += seconds if self.ledger.counting else 0.0
            return seconds
        if self._failures is None:
            self._failures = FailureModel(world.cluster, self.rank, self.seed, me.id)
        if not self.ledger.counting:  # a measurement: a worker that is slow now is measured so
            return self._failures.finish(me.now, seconds, returns=True)[1]
        work = seconds * self._failures.factor(self.step)
        now, seconds, away = self._failures.finish(me.now, work, returns=self.leave is None)
        failures = self._failures.outages(max(self.ledger.alive or -1.0, me.entered), now)
        if failures and self.leave is not None:
            # A failure during a wait takes effect with the next gradient.
            me.now = max(me.now, failures[0].start)
            self.leave(failures[0])
        me.now = now
        self.ledger.compute += seconds
        self.ledger.wait += away
        self.ledger.failures += len(failures)
        self.absences += [(failure.start, failure.end) for failure in failures]
        self.ledger.alive = now
        return seconds

    def _collective(
        self,
        call: str,
        part: Part,
        combine: Callable[[list[Part]], list[Result]],
        seconds: Callable[[Cluster], float],
    ) -> Result:
        """Wait for all workers; the last to arrive combines the parts. Ends `seconds` after the last arrival."""
        world, me = self._world, self._worker
        me.step = self.step
        self._refuse_broken()
        if world.arrived and world.collective != call:
            raise_if_uneven(world.workers)
            raise WorkerError(
                f"worker {self.rank} calls {call} while the others are in {world.collective}: all workers must make "
                "the same calls in the same order",
                self.rank,
                self.step,
            )
        world.collective = call
        world.arrived[self.rank] = part
        if len(world.arrived) == self.size:
            parts = [world.arrived[rank] for rank in range(self.size)]
            world.arrived = {}
            results = combine(parts)
            counting, start = self.ledger.counting, max(w.now for w in world.workers)
            end = start + seconds(world.cluster) if counting else start
            for w, result in zip(world.workers, results, strict=True):
                w.result = result
                if counting:
                    w.wait_until(start, end)
                if w is not me:
                    world.scheduler.wake(w)
        else:
            me.ready, me.waits_for = False, f"in {call}"
        self._switch()
        combined: Result = me.result
        return combined

    @torch.no_grad()
    def _weighted_mean(self, message: torch.Tensor) -> float:
        def combine(parts: list[torch.Tensor]) -> list[float]:
            weights = torch.stack([part[-1] for part in parts])
            total = weights[0].clone()
            for weight in weights[1:]:  # in rank order, as the vectors
                total += weight
            divisor = total.item()
            _sum_into_all(parts, divisor)
            return [divisor] * len(parts)

        return self._collective(
            _describe("weighted_mean", message), message, combine, lambda cluster: cluster.mean(message.nbytes)
        )

    @torch.no_grad()
    def _sum(self, tensor: torch.Tensor) -> None:
        def combine(parts: list[torch.Tensor]) -> list[None]:
            _sum_into_all(parts)
            return [None] * len(parts)

        self._collective(_describe("sum", tensor), tensor, combine, lambda cluster: cluster.mean(tensor.nbytes))

    def _sum_stream(self, stream: Stream) -> None:
        self._sum_as_vector(stream)

    @torch.no_grad()
    def _fused_sum(self, tensor: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]:
        def combine(parts: list[tuple[torch.Tensor, FusedReduction]]) -> list[tuple[list[list[float]], list[float]]]:
            totals = reduce_in_memory([tensor for tensor, _ in parts], [reduction for _, reduction in parts])
            _sum_into_all([tensor for tensor, _ in parts])
            return [totals] * len(parts)

        # As long as the mean of a vector that costs as many bytes.
        _, sent = fused_cost(tensor.numel(), tensor.element_size(), 0, self.size, reduction)
        bytes = sent * self.size // (2 * (self.size - 1))
        return self._collective(
            _describe("fused_sum", tensor), (tensor, reduction), combine, lambda cluster: cluster.mean(bytes)
        )

    @torch.no_grad()
    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        def combine(parts: list[torch.Tensor]) -> list[torch.Tensor]:
            return [torch.stack(parts)] * len(parts)

        return self._collective(
            _describe("gather", tensor), tensor, combine, lambda cluster: cluster.gather(tensor.nbytes)
        )

    @torch.no_grad()
    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        def combine(parts: list[torch.Tensor]) -> list[None]:
            for rank, part in enumerate(parts):
                if rank != source:
                    part.copy_(parts[source])
            return [None] * len(parts)

        call = _describe(f"broadcast from {source}", tensor)
        self._collective(call, tensor, combine, lambda cluster: cluster.broadcast(source, tensor.nbytes))

    def gather_objects(self, value: Any) -> list[Any]:
        def combine(parts: list[bytes]) -> list[list[Any]]:
            # Copies for every receiver, as between processes; equal values are unpickled once per receiver.
            distinct = set(parts)
            return [list(map({part: pickle.loads(part) for part in distinct}.__getitem__, parts)) for _ in parts]

        with self.uncounted():
            return self._collective("gather_objects", pickle.dumps(value), combine, lambda cluster: 0.0)

    def leave_loop(self, steps: int) -> None:
        self._worker.left = steps
        with self.uncounted():
            taken = self._collective(LEAVES, steps, lambda parts: [parts] * len(parts), lambda cluster: 0.0)
        self._worker.left = None
        refuse_uneven(dict(enumerate(taken)))

    def leave_word(self, error: BaseException) -> None:
        """The scheduler ends all workers with the first error."""

    def counter(self, name: str, add: int) -> int:
        self._worker.step = self.step
        self._refuse_broken()
        self._switch()
        self._world.counters[name] = self._world.counters.get(name, 0) + add
        return self._world.counters[name]

    def use_device(self, device: torch.device) -> None:
        """Virtual workers send nothing: their models are in one memory."""

    def copies(self, tensor: torch.Tensor, peers: Iterable[int]) -> bool:
        return True

    @torch.no_grad()
    def _exchange(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> Pending:
        world, copies = self._world, {}
        self._worker.step = self.step
        self._refuse_broken()
        arrivals: dict[int, float] = {}
        if self.ledger.counting:
            sizes = {peer: tensor.nbytes for peer, tensor in outgoing.items()}
            arrivals = world.traffic.send(self.rank, self.now, sizes)
        for peer, tensor in outgoing.items():
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.clone()
            number = world.sent[self.rank, peer]
            world.sent[self.rank, peer] += 1
            world.mail[self.rank, peer, number] = copies[id(tensor)], self.now, arrivals.get(peer, self.now)
            target = world.workers[peer]
            if (self.rank, number) in target.awaited:
                target.awaited.discard((self.rank, number))
                if not target.awaited:
                    world.scheduler.wake(target)
        # The n-th request is for the n-th message, whatever the order of the waits.
        numbers = {peer: world.requested[peer, self.rank] for peer in incoming}
        world.requested.update((peer, self.rank) for peer in incoming)
        return _VirtualExchange(self, incoming, numbers)

    def configure(self, *, timeout: float | None = None, deterministic: bool | None = None) -> None:
        """Virtual workers wait for nothing, and always sum in rank order."""

    def close(self) -> None:
        pass


class _VirtualExchange(Pending):
    def __init__(self, comm: VirtualComm, incoming: Mapping[int, torch.Tensor], numbers: dict[int, int]):
        super().__init__(incoming)
        self.comm, self.numbers = comm, numbers

    def arrive(self) -> Mapping[int, torch.Tensor]:
        comm, world, me = self.comm, self.comm._world, self.comm._worker
        comm._refuse_broken()
        numbers, self.numbers = self.numbers, {}  # a second wait has no message left to wait for
        me.awaited = {(peer, n) for peer, n in numbers.items() if (peer, comm.rank, n) not in world.mail}
        if me.awaited:
            me.ready = False
            me.waits_for = f"for a message from {sorted(peer for peer, _ in me.awaited)}"
        comm._switch()
        messages, last = {}, (0.0, 0.0)
        for peer, number in numbers.items():
            tensor = self.incoming[peer]
            message, departure, arrival = world.mail.pop((peer, comm.rank, number))
            if message.shape != tensor.shape or message.dtype != tensor.dtype:
                raise WorkerError(
                    f"worker {comm.rank} expected {tuple(tensor.shape)} {tensor.dtype} from worker {peer} and got "
                    f"{tuple(message.shape)} {message.dtype}: all workers must build the same model",
                    comm.rank,
                    comm.step,
                )
            messages[peer] = message.view(-1)
            last = max(last, (arrival, departure))
        if comm.ledger.counting and last[0] > me.now:
            me.wait_until(last[1], last[0])
        return messages

    def release(self) -> None: ...


def _describe(call: str, tensor: torch.Tensor) -> str:
    """A call with shape and dtype: workers that differ in any of these make different calls."""
    return f"{call} of {tuple(tensor.shape)} {tensor.dtype}"


def _sum_into_all(parts: list[torch.Tensor], divisor: float = 0.0) -> None:
    """Replace every part by the sum in rank order (divided by `divisor`, if any), one cache-sized block at a time."""
    rows = [part.view(-1) for part in parts]
    for start in range(0, rows[0].numel(), _BLOCK):
        blocks = [row[start : start + _BLOCK] for row in rows]
        total = blocks[0].clone()
        for block in blocks[1:]:
            total += block
        if divisor:
            total.div_(divisor)
        for block in blocks:
            block.copy_(total)
