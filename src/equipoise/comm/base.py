"""Communication between workers: one contract, two implementations; no algorithm knows which one it runs on.

All tensors of one call have the same shape and dtype on every worker. All calls are collective and in the same order on
every worker, except `exchange` (between the workers named in it) and `counter` (any worker at any time).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .fused_reduction import FusedReduction, fused_cost
from .ledger import Ledger, broadcast_cost, gather_cost, mean_cost

if TYPE_CHECKING:
    from .membership import Membership


class Pending(ABC):
    """An exchange in flight. Call either `wait`, or `arrive` and, after reading the messages, `release`."""

    def __init__(self, incoming: Mapping[int, torch.Tensor]):
        self.incoming = incoming

    @torch.no_grad()
    def wait(self) -> None:
        """Return when all sends are complete and all messages are in the tensors given for them."""
        for peer, message in self.arrive().items():
            if message is not self.incoming[peer]:
                self.incoming[peer].copy_(message.view_as(self.incoming[peer]))
        self.release()

    @abstractmethod
    def arrive(self) -> Mapping[int, torch.Tensor]:
        """The messages by source, flat and without a copy. Read-only."""

    @abstractmethod
    def release(self) -> None:
        """Let the sources reuse the memory of their messages."""


class Stream(NamedTuple):
    """A vector to sum that is never held in full: it is written, and its sum is read, in chunks, the last one first."""

    elements: int
    dtype: torch.dtype
    device: torch.device
    fill: Callable[[int, torch.Tensor], object]  # (start, out): write this worker's elements from `start` on
    take: Callable[[int, torch.Tensor], object]  # (start, total): receive the sum of elements from `start` on


class Comm(ABC):
    """The communicator of one worker. Final here: the ledger. An implementation fills the `_` methods."""

    rank: int
    size: int
    virtual: bool
    described: bool = False  # does time follow from a described cluster?
    step: int = 0  # of the loop, for error messages
    seed: int = 0  # of the run; the failure model of a described cluster depends on it
    membership: Membership | None = None  # where workers may come and go; this comm is then of one generation

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.ledger = Ledger()
        self.absences: list[tuple[float, float]] = []  # simulated seconds that this worker was away, not told of yet
        self._scratch: torch.Tensor | None = None

    @property
    def worker(self) -> int:
        """This worker's number for the whole run: its rank, unless workers come and go."""
        return self.rank if self.membership is None else self.membership.worker

    # -- what algorithms call -------------------------------------------------------------------------------------
    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over workers, in place."""
        self.ledger.record(*mean_cost(tensor.numel(), tensor.element_size(), self.rank, self.size))
        if self.size > 1:
            dense = tensor.contiguous()
            self._sum(dense)
            if dense is not tensor:
                tensor.copy_(dense)
        return tensor

    @torch.no_grad()
    def sum_stream(self, stream: Stream) -> None:
        """As `sum`, without a copy at either end where workers share memory.

        `take` receives the end of the vector first: sums there can be used on everything before it.
        """
        self.ledger.record(*mean_cost(stream.elements, stream.dtype.itemsize, self.rank, self.size))
        self._sum_stream(stream)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean over workers, in place."""
        return self.sum(tensor).div_(self.size)

    def weighted_mean(self, message: torch.Tensor) -> float:
        """Divide the sum of messages by the sum of their last elements, in place; return that sum.

        A message is `[w v | w]`: a vector multiplied by its weight, and the weight. The result is the weighted mean of
        all `v` (the zero vector if all weights are zero), in one collective.
        """
        self.ledger.record(*mean_cost(message.numel(), message.element_size(), self.rank, self.size))
        if self.size > 1:
            return self._weighted_mean(message)
        total = message[-1].item()
        if total:
            message[:-1].div_(total)
        return total

    def fused_sum(self, tensor: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]:
        """The sum over workers in rank order, in place; returns all workers' metadata and the summed statistics."""
        self.ledger.record(*fused_cost(tensor.numel(), tensor.element_size(), self.rank, self.size, reduction))
        if self.size > 1:
            return self._fused_sum(tensor, reduction)
        metadata = [list(reduction.metadata)]
        return metadata, reduction.map_chunk([tensor if reduction.vector is None else reduction.vector], metadata, 0)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All workers' tensors, stacked by rank. Read-only: virtual workers share the result."""
        self.ledger.record(*gather_cost(tensor.numel(), tensor.element_size(), self.size))
        return self._gather(tensor) if self.size > 1 else tensor.detach().clone().unsqueeze(0)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """The source's tensor, in place."""
        self.ledger.record(*broadcast_cost(tensor.numel(), tensor.element_size(), self.rank, source, self.size))
        if self.size > 1:
            self._broadcast(tensor, source)
        return tensor

    def exchange(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> Pending:
        """Send `outgoing[peer]` to each peer and fill `incoming[peer]` from each; `wait()` on what it returns.

        The tensors sent must not change and those received not be read before `wait()` returns.
        """
        for peer, tensor in (*outgoing.items(), *incoming.items()):
            if not 0 <= peer < self.size or peer == self.rank:
                raise ValueError(f"worker {self.rank} of {self.size} cannot exchange with worker {peer}")
            if not tensor.is_contiguous():
                raise ValueError(
                    f"worker {self.rank} exchanges a tensor that is not contiguous: pass tensor.contiguous()"
                )
        self.ledger.record(len(outgoing), sum(t.numel() * t.element_size() for t in outgoing.values()))
        return self._exchange(outgoing, incoming)

    @abstractmethod
    def use_device(self, device: torch.device) -> None:
        """This worker's model lives there. All workers call it together, before its tensors are sent."""

    @abstractmethod
    def copies(self, tensor: torch.Tensor, peers: Iterable[int]) -> bool:
        """Does `exchange` with these peers copy the tensor, so that it may change at once?"""

    @abstractmethod
    def counter(self, name: str, add: int) -> int:
        """Add to a counter that all workers share; return the new value."""

    @abstractmethod
    def gather_objects(self, value: Any) -> list[Any]:
        """All workers' picklable values, by rank. For set-up and checkpoints: small, and never counted."""

    @abstractmethod
    def leave_loop(self, steps: int) -> None:
        """All workers end their loops, after the same number of steps; raises `UnevenSteps` where they do not."""

    @abstractmethod
    def leave_word(self, error: BaseException) -> None:
        """This worker is about to end with an error: those who wait for it in vain learn why, and raise the same if it
        is a `WorkerError`.
        """

    @abstractmethod
    def computed(self, examples: float) -> float:
        """Advance the simulated clock by the gradient computation on so many examples; return its seconds."""

    @property
    @abstractmethod
    def now(self) -> float:
        """Simulated time of this worker in seconds; 0 on processes, where time is real."""

    @abstractmethod
    def configure(self, *, timeout: float | None = None, deterministic: bool | None = None) -> None:
        """Change how long to wait for a silent worker, and whether sums are taken in rank order; on all workers."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; no call may follow."""

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """For set-up, evaluation and checkpoints: neither the ledger nor the simulated clock advances."""
        before, self.ledger.counting = self.ledger.counting, False
        try:
            yield
        finally:
            self.ledger.counting = before

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Around a long computation of this worker while the others wait: it is alive, and not hung."""
        self._busy(1)
        try:
            yield
        finally:
            self._busy(-1)

    # -- what an implementation fills -----------------------------------------------------------------------------
    def _busy(self, change: int) -> None:  # noqa: B027  (an empty hook, not a concrete behaviour)
        """A long computation of this worker begins (1) or ends (-1)."""

    @abstractmethod
    def _sum(self, tensor: torch.Tensor) -> None: ...

    @abstractmethod
    def _sum_stream(self, stream: Stream) -> None: ...

    def _sum_as_vector(self, stream: Stream) -> None:
        """Final: sum a stream that is held in full."""
        shape = stream.elements, stream.dtype, stream.device
        vector = self._scratch
        if vector is None or (len(vector), vector.dtype, vector.device) != shape:
            vector = self._scratch = torch.empty(stream.elements, dtype=stream.dtype, device=stream.device)
        stream.fill(0, vector)
        if self.size > 1:
            self._sum(vector)
        stream.take(0, vector)

    @abstractmethod
    def _weighted_mean(self, message: torch.Tensor) -> float: ...

    @abstractmethod
    def _fused_sum(self, tensor: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]: ...

    @abstractmethod
    def _gather(self, tensor: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, source: int) -> None: ...

    @abstractmethod
    def _exchange(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> Pending: ...


def barrier(comm: Comm) -> None:
    """Return when all workers have called this."""
    with comm.uncounted():
        comm.sum(torch.zeros(1))
