"""What a worker sent: messages and payload bytes. Headers, acknowledgements and retries are not payload."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Ledger:
    messages: int = 0
    bytes: int = 0
    counting: bool = True

    def record(self, messages: int, bytes: int) -> None:
        if self.counting:
            self.messages += messages
            self.bytes += bytes

    def state_dict(self) -> dict[str, int]:
        state = asdict(self)
        del state["counting"]
        return state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.messages, self.bytes = state["messages"], state["bytes"]


def mean_cost(elements: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """Messages and bytes that worker `rank` sends in a reduce-scatter followed by an all-gather.

    Over all workers 2 (size - 1) vectors: the least possible for a mean that everybody holds.
    """
    if size == 1:
        return 0, 0
    chunk = elements // size + (rank < elements % size)
    return 2 * (size - 1), ((elements - chunk) + chunk * (size - 1)) * itemsize


def gather_cost(elements: int, itemsize: int, size: int) -> tuple[int, int]:
    """Everybody's tensor reaches everybody."""
    return size - 1, elements * itemsize * (size - 1)


def broadcast_cost(elements: int, itemsize: int, rank: int, source: int, size: int) -> tuple[int, int]:
    """The source's tensor reaches everybody; counted at the source."""
    return (size - 1, elements * itemsize * (size - 1)) if rank == source else (0, 0)
