"""A promise that is broken is found: every check of `equipoise.testing` fails for the reason that it is there for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

import equipoise as eq
from equipoise import testing
from equipoise.core.errors import UserError
from equipoise.core.method import Configurable

_calls = itertools.count()


@dataclass
class Pull(eq.sync.Sync):
    """Pull to the mean, by a part that the worker remembers. Sound, and the base of those that are not."""

    metadata: ClassVar[eq.Metadata] = eq.Metadata(name="pull", help="a part of the mean")
    STATE: ClassVar[tuple[str, ...]] = ("part", "mean")

    less: float = eq.option(0.9, help="of the part, at each round", above=0, below=1)

    def init_state(self) -> None:
        self.part = 1.0
        self.mean = torch.zeros(len(self.flat))

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        self.mean.copy_(self.context.comm.gather(x).mean(0))
        x.lerp_(self.mean, self.part)
        self.part *= self.less
        self.context.clock.rounds += 1

    def cost(self, model: eq.sync.ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return (size - 1, (size - 1) * model.elements * model.itemsize) if due else (0, 0)


class Forgetful(Pull):
    """A state that no checkpoint keeps."""

    STATE = ("mean",)


class Aliased(Pull):
    """Gives out what it goes on changing."""

    def state_dict(self) -> dict[str, Any]:
        return {"part": self.part, "mean": self.mean}


class Cheap(Pull):
    """Sends more than it says."""

    def cost(self, model: eq.sync.ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return (1, model.elements * model.itemsize) if due else (0, 0)


class Fickle(Pull):
    """Depends on how often it was called in this process."""

    def after_step(self, x: torch.Tensor) -> None:
        super().after_step(x)
        x.add_(1e-4 * (next(_calls) % 7))


class Virtual(Pull):
    """Does something else on processes."""

    def after_step(self, x: torch.Tensor) -> None:
        super().after_step(x)
        x.mul_(1.0 if self.context.comm.virtual else 0.999)


class Stuck(Pull):
    """Learns nothing."""

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> eq.sync.StepPlan:
        return eq.sync.StepPlan(optimize=False)


class Examples(Pull):
    """Asks for something that only `eq.train` has."""

    def after_step(self, x: torch.Tensor) -> None:
        super().after_step(x)
        x.mul_(0.999 if self.context.fresh_gradients is None else 1.0)


@dataclass
class Helpless(Pull):
    """An option that says nothing of itself."""

    speed: float = field(default=1.0, metadata={"help": "", "least": None, "above": None, "most": None, "below": None})


@dataclass
class Unbuilt(Pull):
    """A repr that builds something else."""

    def __repr__(self) -> str:
        return "Unbuilt(less=0.5)"


class Shouted(Pull):
    """A name for nobody's command line."""

    metadata: ClassVar[eq.Metadata] = eq.Metadata(name="PULL it", help="a part of the mean")


@dataclass
class Twice(eq.order.Order):
    """Visits every other example, twice, and needs two workers for it."""

    metadata: ClassVar[eq.Metadata] = eq.Metadata(name="twice", help="half of them")

    def init_state(self) -> None:
        assert self.context.size > 1, "two workers are needed"

    def epoch(self, number: int) -> npt.NDArray[np.int64]:
        return np.arange(self.context.worker.examples) // 2 * 2

    def observe(self, positions: Any, view: Any) -> None: ...


@dataclass(kw_only=True)
class Leaking(eq.topology.Static):
    """Weights that sum to more than one."""

    metadata: ClassVar[eq.Metadata] = eq.Metadata(name="leaking", help="too much")

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        return [((rank + 1) % size, 0.9), ((rank + 2) % size, 0.9)] if size > 2 else []


def test_a_sound_method_passes_everything() -> None:
    testing.check_method(Pull())


@pytest.mark.parametrize(
    ("check", "method", "words"),
    [
        (testing.check_resume, Forgetful(), "params_sha256 differs"),
        (testing.check_attach_resume, Forgetful(), "params_sha256 differs"),
        (testing.check_state, Aliased(), "changed after it was given out"),
        (testing.check_cost, Cheap(), "rank 0 of 3, step 2: sent"),
        (testing.check_deterministic, Fickle(), "params_sha256 differs"),
        (testing.check_processes, Virtual(), "params_sha256 differs"),
        (testing.check_trains, Stuck(), "the loss fell from"),
        (testing.check_attach, Examples(), "params_sha256 differs"),
        (testing.check_options, Helpless(), "speed: pass help="),
        (testing.check_repr, Unbuilt(), "builds another one"),
        (testing.check_metadata, Shouted(), "small letters and hyphens"),
        (testing.check_one_worker, Twice(), "two workers are needed"),
        (testing.check_every_example, Twice(), "epoch 0 of rank 0 does not visit every example once"),
        (testing.check_graph, Leaking(), "weights of round 0 on 4 workers"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if not isinstance(value, str) else "",
)
def test_a_broken_promise_is_found(check: Callable[[Any], None], method: Configurable, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check(method)


def test_what_has_no_promises_is_refused() -> None:
    from equipoise.models import MLP

    with pytest.raises(UserError, match="on no axis that has promises"):
        testing.check_method(MLP())
