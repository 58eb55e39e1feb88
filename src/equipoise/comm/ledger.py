"""What a worker sent, and how it spent its time.

Messages and payload bytes: headers, acknowledgements and retries are not payload. On a described cluster seconds are
simulated and the three kinds sum to the worker's simulated time; otherwise they are real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass


@dataclass
class Deferred:
    """Messages that were sent and count later, when what they belong to is complete."""

    messages: int = 0
    bytes: int = 0


@dataclass
class Ledger:
    messages: int = 0
    bytes: int = 0
    compute: float = 0.0  # seconds of gradient computation
    wait: float = 0.0  # seconds until the last worker joined a collective, or until a message was sent
    communicate: float = 0.0  # seconds of communication after that
    failures: int = 0  # failures of this worker,
    alive: float = 0.0  # counted up to this simulated second
    counting: bool = True
    unattributed: float = 0.0  # seconds of `communicate` that may contain waiting

    def record(self, messages: int, bytes: int) -> None:
        if self.counting:
            self.messages += messages
            self.bytes += bytes

    @contextlib.contextmanager
    def deferred(self, cost: Deferred) -> Iterator[None]:
        """Count in `cost` instead of here: a resumed run sends what was in flight again, and it must count once."""
        before = self.messages, self.bytes
        yield
        cost.messages += self.messages - before[0]
        cost.bytes += self.bytes - before[1]
        self.messages, self.bytes = before

    def attribute_wait(self, least: float) -> None:
        """Move unattributed seconds beyond the `least` of all workers to `wait`: the last to arrive did not wait."""
        waited = self.unattributed - least
        self.wait += waited
        self.communicate -= waited
        self.unattributed = 0.0

    @property
    def spent(self) -> dict[str, float]:
        return {"compute": self.compute, "wait": self.wait, "communicate": self.communicate}

    def state_dict(self) -> dict[str, float]:
        state = asdict(self)
        del state["counting"]
        return state

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def mean_cost(elements: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """Messages and bytes that worker `rank` sends in a reduce-scatter followed by an all-gather.

    Over all workers 2 (size - 1) vectors: the least possible for an all-reduce.
    """
    if size == 1:
        return 0, 0
    chunk = elements // size + (rank < elements % size)
    return 2 * (size - 1), ((elements - chunk) + chunk * (size - 1)) * itemsize


def gather_cost(elements: int, itemsize: int, size: int) -> tuple[int, int]:
    """Of one worker in an all-gather."""
    return size - 1, elements * itemsize * (size - 1)


def broadcast_cost(elements: int, itemsize: int, rank: int, source: int, size: int) -> tuple[int, int]:
    """Counted at the source."""
    return (size - 1, elements * itemsize * (size - 1)) if rank == source else (0, 0)
