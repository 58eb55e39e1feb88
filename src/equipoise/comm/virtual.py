"""N workers inside one process: threads that run one at a time and hand over only inside comm calls.

The next worker is always the one with the least simulated time (then the lowest rank), so a run is a function of its
inputs, and whatever order a cluster of unequal workers would produce is the order that happens here. Sums are taken in
rank order. Each worker has its own random streams: the global generators are swapped at hand-over.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..core.errors import PeerLost, WorkerError
from ..core.random import rng_state, set_rng_state
from ..simulate.cluster import Cluster, Traffic
from ..simulate.failures import FailureModel
from .base import Comm, Pending, Stream
from .fused_reduction import FusedReduction, fused_cost, reduce_in_memory
from .ledger import Ledger


def _swap_out() -> tuple[Any, ...]:
    """The generators of the worker that pauses. numpy's is kept as an object: its state takes longer to copy than to swap."""
    return torch.get_rng_state(), random.getstate(), np.random.get_bit_generator()  # type: ignore[attr-defined]


def _swap_in(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_bit_generator(state[2])  # type: ignore[attr-defined]


_BLOCK = 1 << 15  # elements summed at once: what stays in a core's cache


class _Abort(BaseException):
    """Unwinds a worker after another one failed."""


class _Worker:
    def __init__(self, rank: int, described: bool):
        self.rank = rank
        self.described = described  # is its time that of a described cluster?
        self.baton = threading.Lock()
        self.baton.acquire()
        self.now = 0.0
        self.ready = True
        self.done = False
        self.waits_for = ""  # words for the diagnosis of a deadlock
        self.wanted: set[tuple[int, int]] = set()  # (source, number) of messages it cannot go on without
        self.rng: tuple[Any, ...] | None = None
        self.result: Any = None
        self.step = 0
        self.ledger = Ledger()  # its comm's

    def until(self, start: float, end: float) -> None:
        """Wait for something that begins at `start`, and then for its end."""
        if self.described:
            waited = min(max(start - self.now, 0.0), end - self.now)
            self.ledger.wait += waited
            self.ledger.communicate += end - self.now - waited
        self.now = end


def _one_arena() -> None:
    """Let glibc serve all threads from one heap: workers run one at a time, and a heap each would keep a vector each."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(-8, 1)  # M_ARENA_MAX


def _wait_for_exit(pool: list[threading.Thread]) -> None:
    """A joined thread may still give back what the linear algebra kept for it, under a lock that a process forked
    in that moment would find taken for ever.
    """
    patience = time.monotonic() + 5.0
    for thread in pool:
        while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < patience:
            time.sleep(0.0002)


class World:
    """The scheduler of virtual workers."""

    def __init__(self, size: int, cluster: Cluster | None = None):
        self.cluster = cluster or Cluster.uniform(size)
        assert self.cluster.size == size
        self.size = size
        self.workers = [_Worker(rank, self.cluster.described) for rank in range(size)]
        self.arrived: dict[int, Any] = {}
        self.meeting = ""
        self.mail: dict[tuple[int, int, int], tuple[torch.Tensor, float, float]] = {}  # by source, target, number
        self.sent: Counter[tuple[int, int]] = Counter()  # messages so far from a source to a target,
        self.asked: Counter[tuple[int, int]] = Counter()  # and how many of them the target has asked for
        self.traffic = Traffic(self.cluster)
        self.counters: dict[str, int] = {}
        self.failure: tuple[int, BaseException] | None = None
        self.turns: list[tuple[float, int]] = []  # a heap: whoever is ready and not running, by simulated time
        self.alive = size
        self.over = threading.Event()

    def run(self, function: Callable[[Comm], Any], *, threads: int = 1) -> list[Any]:
        """`function(comm)` on every worker; their results by rank. The first failure ends all and is raised here."""
        before, own = torch.get_num_threads(), _swap_out()
        self.generators = rng_state()
        torch.set_num_threads(threads)
        _one_arena()
        pool = [
            threading.Thread(target=self._main, args=(w, function), name=f"worker-{w.rank}", daemon=True)
            for w in self.workers
        ]
        try:
            for thread in pool:
                thread.start()
            self.turns = [(0.0, rank) for rank in range(self.size)]
            self._pass_on()
            while not self.over.wait(0.5):  # wakes so that signals reach Python
                pass
            for thread in pool:
                thread.join()
            _wait_for_exit(pool)
        except BaseException as interrupt:  # a second Ctrl-C does not wait; workers unwind at their next hand-over
            self.failure = self.failure or (0, interrupt)
            raise
        finally:
            torch.set_num_threads(before)
            _swap_in(own)
        if self.failure is not None:
            rank, error = self.failure
            if isinstance(error, WorkerError) and error.rank is None:
                error.rank, error.step = rank, self.workers[rank].step
            error.equipoise_rank = rank  # type: ignore[attr-defined]
            error.equipoise_step = self.workers[rank].step  # type: ignore[attr-defined]
            raise error
        return [w.result for w in self.workers]

    def _main(self, worker: _Worker, function: Callable[[Comm], Any]) -> None:
        worker.baton.acquire()
        try:
            if self.failure is None:
                np.random.set_bit_generator(np.random.MT19937(0))  # type: ignore[attr-defined]  # an object of its own
                set_rng_state(self.generators)  # begins where the launcher stood, as forked processes do
                worker.result = function(VirtualComm(self, worker))
        except _Abort:
            pass
        except BaseException as error:
            if self.failure is None:
                self.failure = (worker.rank, error)
        worker.done, worker.ready = True, False
        self.alive -= 1
        self._pass_on()

    def wake(self, worker: _Worker) -> None:
        """A worker that was waiting can go on."""
        worker.ready = True
        heapq.heappush(self.turns, (worker.now, worker.rank))

    def _pass_on(self) -> None:
        """Hand the baton to the next worker; on failure to each in turn, so that it unwinds."""
        if not self.alive:
            self.over.set()
            return
        if not self.turns or self.failure is not None:
            alive = [w for w in self.workers if not w.done]
            if self.failure is None:
                self.failure = (alive[0].rank, PeerLost(self._deadlock(alive), alive[0].rank, alive[0].step))
            following = alive[0]
        else:
            following = self.workers[heapq.heappop(self.turns)[1]]
        following.baton.release()

    def _deadlock(self, alive: list[_Worker]) -> str:
        waits = "; ".join(f"worker {w.rank} waits {w.waits_for} at step {w.step}" for w in alive[:4])
        done = [w.rank for w in self.workers if w.done]
        ended = f"; already ended: {done}" if done else ""
        return f"the workers wait for each other for ever: {waits}{ended}"

    def switch(self, worker: _Worker) -> None:
        """Let another worker run; return when it is this one's turn again."""
        if worker.ready:
            turn = (worker.now, worker.rank)
            if self.failure is None and (not self.turns or turn < self.turns[0]):
                return
            heapq.heappush(self.turns, turn)
        worker.rng = _swap_out()
        began = time.perf_counter()
        self._pass_on()
        worker.baton.acquire()
        if self.failure is not None:
            raise _Abort
        if not worker.described and worker.ledger.counting:
            worker.ledger.wait += time.perf_counter() - began  # the others' turns
        _swap_in(worker.rng)


def _of(call: str, tensor: torch.Tensor) -> str:
    """A call with what it is made on: workers that differ in either do not meet."""
    return f"{call} of {tuple(tensor.shape)} {tensor.dtype}"


class VirtualComm(Comm):
    """One virtual worker's view of the world."""

    virtual = True

    def __init__(self, world: World, worker: _Worker):
        super().__init__(worker.rank, world.size)
        self._world, self._worker = world, worker
        self.described = world.cluster.described
        self._chance: FailureModel | None = None  # made when the seed of the run is known
        worker.ledger = self.ledger

    @property
    def now(self) -> float:
        return self._worker.now

    @now.setter
    def now(self, value: float) -> None:
        self._worker.now = value

    def computed(self, examples: float) -> float:
        world, me = self._world, self._worker
        seconds = world.cluster.compute(self.rank, examples)
        if not self.ledger.counting:
            return seconds
        if not me.described:
            me.now += seconds
            return seconds
        if self._chance is None:
            self._chance = FailureModel(world.cluster, self.rank, self.seed)
        seconds *= self._chance.factor(self.step)
        self.ledger.compute += seconds
        me.now += seconds
        # A failure while this worker waits for others takes effect with its next gradient; one under repair does not fail.
        if failures := self._chance.failures(self.ledger.alive, me.now):
            self.ledger.failures += failures
            self.ledger.wait += failures * self._chance.repair
            me.now += failures * self._chance.repair
        self.ledger.alive = me.now
        return seconds

    def _meet(
        self, kind: str, payload: Any, combine: Callable[[list[Any]], list[Any]], seconds: Callable[[Cluster], float]
    ) -> Any:
        """Wait for everybody; the last to come combines. The meeting ends `seconds` after the last arrival."""
        world, me = self._world, self._worker
        me.step = self.step
        if world.arrived and world.meeting != kind:
            raise WorkerError(
                f"worker {self.rank} calls {kind} while the others are in {world.meeting}: all workers must make the "
                "same calls in the same order",
                self.rank,
                self.step,
            )
        world.meeting = kind
        world.arrived[self.rank] = payload
        if len(world.arrived) == self.size:
            parts = [world.arrived[rank] for rank in range(self.size)]
            world.arrived = {}
            results = combine(parts)
            counting, start = self.ledger.counting, max(w.now for w in world.workers)
            end = start + seconds(world.cluster) if counting else start
            for w, result in zip(world.workers, results, strict=True):
                w.result = result
                if counting:
                    w.until(start, end)
                if w is not me:
                    world.wake(w)
        else:
            me.ready, me.waits_for = False, f"in {kind}"
        world.switch(me)
        return me.result

    @torch.no_grad()
    def _weighted_mean(self, message: torch.Tensor) -> float:
        def combine(parts: list[torch.Tensor]) -> list[float]:
            total = torch.stack([part[-1] for part in parts])
            weight = total[0].clone()
            for one in total[1:]:  # in rank order, as the vectors are
                weight += one
            _sum_into_all(parts, weight.item())
            return [weight.item()] * len(parts)

        bytes = message.numel() * message.element_size()
        return self._meet(_of("weighted_mean", message), message, combine, lambda cluster: cluster.mean(bytes))

    @torch.no_grad()
    def _sum(self, tensor: torch.Tensor) -> None:
        def combine(parts: list[torch.Tensor]) -> list[None]:
            _sum_into_all(parts)
            return [None] * len(parts)

        bytes = tensor.numel() * tensor.element_size()
        self._meet(_of("sum", tensor), tensor, combine, lambda cluster: cluster.mean(bytes))

    def _sum_stream(self, stream: Stream) -> None:
        self._sum_whole(stream)

    @torch.no_grad()
    def _fused_sum(self, tensor: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]:
        def combine(parts: list[tuple[torch.Tensor, FusedReduction]]) -> list[tuple[list[list[float]], list[float]]]:
            totals = reduce_in_memory([tensor for tensor, _ in parts], [reduction for _, reduction in parts])
            _sum_into_all([tensor for tensor, _ in parts])
            return [totals] * len(parts)

        # As long as a mean of a vector that costs as many bytes.
        _, sent = fused_cost(tensor.numel(), tensor.element_size(), 0, self.size, reduction)
        bytes = sent * self.size // (2 * (self.size - 1))
        return self._meet(_of("fused_sum", tensor), (tensor, reduction), combine, lambda cluster: cluster.mean(bytes))

    @torch.no_grad()
    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        def combine(parts: list[torch.Tensor]) -> list[torch.Tensor]:
            return [torch.stack(parts)] * len(parts)

        bytes = tensor.numel() * tensor.element_size()
        return self._meet(_of("gather", tensor), tensor, combine, lambda cluster: cluster.gather(bytes))

    @torch.no_grad()
    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        def combine(parts: list[torch.Tensor]) -> list[None]:
            for rank, part in enumerate(parts):
                if rank != source:
                    part.copy_(parts[source])
            return [None] * len(parts)

        bytes = tensor.numel() * tensor.element_size()
        self._meet(
            _of(f"broadcast from {source}", tensor), tensor, combine, lambda cluster: cluster.broadcast(source, bytes)
        )

    def gather_objects(self, value: Any) -> list[Any]:
        def combine(parts: list[bytes]) -> list[list[Any]]:
            # Copies, as between processes; what many say alike is read once for each who hears it.
            said = set(parts)
            return [list(map({part: pickle.loads(part) for part in said}.__getitem__, parts)) for _ in parts]

        with self.uncounted():
            return self._meet("gather_objects", pickle.dumps(value), combine, lambda cluster: 0.0)

    def counter(self, name: str, add: int) -> int:
        self._worker.step = self.step
        self._world.switch(self._worker)
        self._world.counters[name] = self._world.counters.get(name, 0) + add
        return self._world.counters[name]

    @torch.no_grad()
    def _exchange(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> Pending:
        world, copies = self._world, {}
        self._worker.step = self.step
        arrivals: dict[int, float] = {}
        if self.ledger.counting:
            sizes = {peer: tensor.numel() * tensor.element_size() for peer, tensor in outgoing.items()}
            arrivals = world.traffic.send(self.rank, self.now, sizes)
        for peer, tensor in outgoing.items():
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.clone()
            number = world.sent[self.rank, peer]
            world.sent[self.rank, peer] += 1
            world.mail[self.rank, peer, number] = copies[id(tensor)], self.now, arrivals.get(peer, self.now)
            target = world.workers[peer]
            if (self.rank, number) in target.wanted:
                target.wanted.discard((self.rank, number))
                if not target.wanted:
                    world.wake(target)
        # The n-th message that is asked for is the n-th that was sent, in whatever order they are waited for.
        numbers = {peer: world.asked[peer, self.rank] for peer in incoming}
        world.asked.update((peer, self.rank) for peer in incoming)
        return _Receiving(self, incoming, numbers)

    def close(self) -> None:
        pass


def _sum_into_all(parts: list[torch.Tensor], divisor: float = 0.0) -> None:
    """Every part becomes the sum over parts in rank order (divided by `divisor`, if any), a cache-sized block at a time."""
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


class _Receiving(Pending):
    def __init__(self, comm: VirtualComm, incoming: Mapping[int, torch.Tensor], numbers: dict[int, int]):
        super().__init__(incoming)
        self.comm, self.numbers = comm, numbers

    def arrive(self) -> Mapping[int, torch.Tensor]:
        comm, world, me = self.comm, self.comm._world, self.comm._worker
        numbers, self.numbers = self.numbers, {}  # a second wait has nothing left to wait for
        me.wanted = {(peer, n) for peer, n in numbers.items() if (peer, comm.rank, n) not in world.mail}
        if me.wanted:
            me.ready = False
            me.waits_for = f"for a message from {sorted(peer for peer, _ in me.wanted)}"
        world.switch(me)
        found, last = {}, (0.0, 0.0)
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
            found[peer] = message.view(-1)
            last = max(last, (arrival, departure))
        if comm.ledger.counting and last[0] > me.now:
            me.until(last[1], last[0])
        return found

    def release(self) -> None: ...
