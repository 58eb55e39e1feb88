"""What a bound method knows: a frozen description of its worker, and what it may call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .clock import Clock

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..comm.base import Comm
    from ..loop.fresh_gradients import FreshGradients
    from ..wire.base import Wire
    from .island import Island
    from .vector import Flat, ModelSize


def no_op_emit(event: str, **fields: Any) -> None:
    """Where no events are written."""


@dataclass(frozen=True)
class WorkerInfo:
    """One worker: which rank of how many, its seed, and how the examples are spread."""

    rank: int = 0
    size: int = 1
    seed: int = 0
    examples: int = 0  # in this worker's block
    total_examples: int = 0  # of all workers
    shares: tuple[float, ...] = ()  # each worker's part of all examples, by rank; empty where it is not known

    @property
    def share(self) -> float:
        """This worker's part of all examples."""
        return self.shares[self.rank] if self.shares else 1.0 / self.size

    def rng(self, *purpose: int) -> np.random.Generator:
        """A stream that depends on the seed, this worker and the purpose alone: nothing to store, nothing shared."""
        import numpy as np  # not at the top: the command reads recipes without it

        return np.random.default_rng([self.seed, self.rank, *purpose])


def _one_process() -> Island:
    from .island import Island  # not at the top: it needs torch

    return Island()


_FROM_COMM = WorkerInfo()  # stands for the worker behind `comm`, of which nothing more is said


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before it begins."""

    samples: float  # of all workers, to its end
    decay: Callable[[float], float] | None = (
        None  # of the learning rate: its factor at a part of the run; None: unknown
    )


@dataclass(frozen=True)
class Context:
    """What a method of one worker may use. No method writes anything here for another one to find."""

    comm: Comm
    clock: Clock = field(default_factory=Clock)
    worker: WorkerInfo = _FROM_COMM
    flat: Flat | None = None  # the model
    wire: Wire | None = None  # compresses what a sync sends; None: vectors travel as they are
    optimizer: torch.optim.Optimizer | None = None
    island: Island = field(default_factory=lambda: _one_process())  # the processes that are this worker
    clip: float | None = None  # the norm to which the loop clips gradients
    averages: str = ""  # what a round of the sync averages anyway: "gradient", "parameters" or neither
    lockstep: bool = True  # is it known before a step whether a round follows?
    fresh_gradients: FreshGradients | None = None  # gradients on examples drawn for a measurement
    example_gradients: Callable[[int], list[torch.Tensor]] | None = None  # of so many examples of this step's batch
    forecast: Forecast | None = None  # where the run's length is counted in samples
    emit: Callable[..., None] = no_op_emit  # emit(event, **fields) writes a line to the events

    def __post_init__(self) -> None:
        if self.worker is _FROM_COMM and self.comm is not None:
            self.redescribe(describe(self.comm))

    @property
    def rank(self) -> int:
        return self.worker.rank

    @property
    def size(self) -> int:
        return self.worker.size

    @property
    def model_size(self) -> ModelSize:
        """What the cost of a message depends on."""
        assert self.flat is not None
        return self.flat.size._replace(wire=self.wire)

    def redescribe(self, worker: WorkerInfo) -> None:
        """For the loop alone: examples were redistributed, so all methods of this worker see another description."""
        object.__setattr__(self, "worker", worker)


def describe(comm: Comm, *, seed: int = 0, sizes: list[int] | None = None) -> WorkerInfo:
    """The worker behind `comm`, where worker i holds `sizes[i]` examples."""
    if sizes is None:
        return WorkerInfo(comm.rank, comm.size, seed)
    total = sum(sizes)
    return WorkerInfo(comm.rank, comm.size, seed, sizes[comm.rank], total, tuple(n / total for n in sizes))
