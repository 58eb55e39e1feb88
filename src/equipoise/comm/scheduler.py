"""The scheduler of virtual workers: threads of which one runs at a time.

A worker hands over only inside comm calls. The next one is always the one with the least simulated time (then the
lowest number), so a run is a function of its inputs, in the order that a cluster of unequal workers would produce. Each
worker has its own random streams: the global generators are swapped at hand-over.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..core.errors import PeerLost, UnevenSteps, WorkerError
from ..core.random import device_states, follow_started, rng_state, set_device_states, set_rng_state
from .ledger import Ledger

LEAVES = "the end of its loop"  # as a collective call


class VirtualWorker:
    """One thread: its simulated time, what it waits for, and its random generators while it is paused."""

    def __init__(self, number: int, described: bool):
        self.number = number  # of the thread; in a fixed world the rank
        self.id = number  # the worker's number for the whole run
        self.described = described  # is its time that of a described cluster?
        self.may_run = threading.Lock()
        self.may_run.acquire()
        self.now = 0.0
        self.entered = -1.0  # the simulated second at which it came; before 0 if it was there from the start
        self.ready = True
        self.done = False
        self.lost = False  # declared dead: it unwinds and takes no further part
        self.interrupted = False  # what it waited for will not come
        self.enters = False  # does it wait to be let in?
        self.waits_for = ""  # for the error message of a deadlock
        self.awaited: set[tuple[int, int]] = set()  # (source, number) of messages that block it
        self.rng: tuple[Any, ...] | None = None
        self.result: Any = None
        self.step = 0
        self.left: int | None = None  # the steps of its loop, once it waits for the others at the end of it
        self.ledger = Ledger()  # that of its comm

    def wait_until(self, start: float, end: float) -> None:
        """Wait for a communication that takes from `start` to `end`, and account for the time."""
        if self.described:
            waited = min(max(start - self.now, 0.0), end - self.now)
            self.ledger.wait += waited
            self.ledger.communicate += end - self.now - waited
        self.now = end


class Abort(BaseException):
    """Unwinds a worker after another one failed, or after it was declared dead."""


class Scheduler:
    """Runs a function on every worker and decides who runs next."""

    def __init__(self, size: int, described: bool):
        self.described = described
        self.workers = [VirtualWorker(number, described) for number in range(size)]
        self.failure: tuple[int, BaseException] | None = None  # the first one: number of the worker, and error
        self._ready: list[tuple[float, int]] = []  # a heap of paused workers that can continue, by simulated time
        self._alive = 0
        self._over = threading.Event()
        self._initial_rng: Any = None
        self._pool: list[threading.Thread] = []
        self._function: Callable[[VirtualWorker], Any] | None = None
        self._threads = 1

    def run(self, function: Callable[[VirtualWorker], Any], *, threads: int = 1) -> list[Any]:
        """`function(worker)` on every worker; results by number. The first failure ends all and is raised here."""
        follow_started()
        threads_before, own_rng = torch.get_num_threads(), _pause_rng()
        self._initial_rng = rng_state()
        self._function, self._threads = function, threads
        torch.set_num_threads(threads)
        _use_one_malloc_arena()
        try:
            for worker in self.workers:
                self._start(worker)
            self._run_next()
            while not self._over.wait(0.5):  # wakes up so that signals reach Python
                pass
            for thread in self._pool:
                thread.join()
            _wait_for_exit(self._pool)
        except BaseException as interrupt:  # a second Ctrl-C does not wait; workers unwind at their next hand-over
            self.failure = self.failure or (0, interrupt)
            raise
        finally:
            torch.set_num_threads(threads_before)
            _continue_rng(own_rng)
        if self.failure is not None:
            raise self._attributed(*self.failure)
        return [w.result for w in self.workers]

    def add(self, id: int, now: float) -> VirtualWorker:
        """One more worker, from this simulated time on."""
        worker = VirtualWorker(len(self.workers), self.described)
        worker.id, worker.now, worker.entered = id, now, now
        self.workers.append(worker)
        if self._function is not None:
            self._start(worker)
        return worker

    def _start(self, worker: VirtualWorker) -> None:
        thread = threading.Thread(target=self._main, args=(worker,), name=f"worker-{worker.id}", daemon=True)
        thread.start()
        self._pool.append(thread)
        self._alive += 1
        heapq.heappush(self._ready, (worker.now, worker.number))

    def _attributed(self, number: int, error: BaseException) -> BaseException:
        """The error with the worker and the step where it happened."""
        rank, step = self.workers[number].id, self.workers[number].step
        if isinstance(error, WorkerError) and error.rank is None:
            error.rank, error.step = rank, step
        error.equipoise_rank = rank  # type: ignore[attr-defined]
        error.equipoise_step = step  # type: ignore[attr-defined]
        return error

    def _main(self, worker: VirtualWorker) -> None:
        worker.may_run.acquire()
        try:
            if self.failure is None:
                assert self._function is not None
                # OpenMP's number is each thread's own, and a product with two threads rounds differently.
                torch.set_num_threads(self._threads)
                np.random.set_bit_generator(np.random.MT19937(0))  # type: ignore[attr-defined]  # its own object
                set_rng_state(self._initial_rng)  # that of the launcher, as in forked processes
                worker.result = self._function(worker)
        except Abort:
            pass
        except BaseException as error:
            if self.failure is None:
                self.failure = (worker.number, error)
        worker.done, worker.ready = True, False
        self._alive -= 1
        self._run_next()

    def wake(self, worker: VirtualWorker) -> None:
        """Mark a waiting worker as ready."""
        worker.ready = True
        heapq.heappush(self._ready, (worker.now, worker.number))

    def interrupt(self, worker: VirtualWorker) -> None:
        """Let a worker that waits know that what it waits for will not come."""
        if not (worker.ready or worker.done):
            worker.interrupted, worker.awaited = True, set()
            self.wake(worker)

    def switch(self, worker: VirtualWorker) -> None:
        """Let the next worker run; return when it is this worker's turn again."""
        if worker.ready:
            priority = (worker.now, worker.number)
            if self.failure is None and (not self._ready or priority < self._ready[0]):
                return
            heapq.heappush(self._ready, priority)
        worker.rng = _pause_rng()
        began = time.perf_counter()
        self._run_next()
        worker.may_run.acquire()
        if self.failure is not None or worker.lost:
            raise Abort
        if not worker.described and worker.ledger.counting:
            worker.ledger.wait += time.perf_counter() - began  # the time in which other workers ran
        _continue_rng(worker.rng)

    def _run_next(self) -> None:
        """Start the next ready worker; after a failure every worker in turn, so that it unwinds."""
        if not self._alive:
            self._over.set()
            return
        if not self._ready or self.failure is not None:
            alive = [w for w in self.workers if not w.done]
            if self.failure is None and all(w.enters for w in alive):  # nobody is left to let them in
                for w in alive:
                    self.interrupt(w)
                self._run_next()
                return
            if self.failure is None:
                lost = uneven(alive) or PeerLost(self._deadlock(alive), alive[0].id, alive[0].step)
                self.failure = (alive[0].number, lost)
            following = alive[0]
        else:
            following = self.workers[heapq.heappop(self._ready)[1]]
        following.may_run.release()

    def _deadlock(self, alive: list[VirtualWorker]) -> str:
        waits = "; ".join(f"worker {w.id} waits {w.waits_for} at step {w.step}" for w in alive[:4])
        done = [w.id for w in self.workers if w.done]
        ended = f"; already ended: {done}" if done else ""
        return f"deadlock, the workers wait for each other: {waits}{ended}"


def uneven(workers: list[VirtualWorker]) -> UnevenSteps | None:
    """The error for a worker that waits at the end of its loop while another one is in a further step."""
    for left in workers:
        for other in workers:
            if left.left is not None and other.left is None and not other.done and other.step > left.left:
                return UnevenSteps.between(left.id, left.left, other.id, other.step)
    return None


def raise_if_uneven(workers: list[VirtualWorker]) -> None:
    error = uneven(workers)
    if error is not None:
        raise error


def _pause_rng() -> tuple[Any, ...]:
    """The global generators. numpy's is kept as an object: swapping it is faster than copying its state."""
    numpy_rng = np.random.get_bit_generator()  # type: ignore[attr-defined]
    return torch.get_rng_state(), random.getstate(), numpy_rng, device_states()


def _continue_rng(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_bit_generator(state[2])  # type: ignore[attr-defined]
    set_device_states(state[3])


def _use_one_malloc_arena() -> None:
    """Let glibc serve all threads from one heap: workers run one at a time, and an arena each would waste memory."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(-8, 1)  # M_ARENA_MAX


def _wait_for_exit(pool: list[threading.Thread]) -> None:
    """Wait until the kernel has removed the threads.

    A joined thread may still release memory of the linear algebra library, under a lock. A process forked at that
    moment would never get the lock.
    """
    deadline = time.monotonic() + 5.0
    for thread in pool:
        while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
            time.sleep(0.0002)
