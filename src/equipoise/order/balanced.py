"""The options and the plumbing that all balanced orders share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.errors import UserError
from ..core.method import option
from ..signal import signal_of
from ..signal.base import GradientView
from .balancer import Balancer
from .base import Order

_SIGNAL = "what is seen of a gradient: all of it layer by layer or in forward mode, a sketch, the last layer, or a whole group's"


SEEN = ("exact", "forward", "projection", "count-sketch", "last-layer", "batch")


@dataclass
class Balanced(Order):
    """A balanced order: fill `balancer`. Final here: options, epochs, state."""

    watches: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("learned",)
    HEALTH: ClassVar[tuple[str, ...]] = ("herding",)

    signal: str = option("exact", help=_SIGNAL, choices=SEEN)
    sign: str = option("greedy", help="sign rule", choices=("greedy", "halving", "walk"))
    group: int = option(1, help="examples that stay together and are ordered as one", least=1)

    def check(self) -> None:
        if self.signal == "batch" and self.group == 1:
            raise UserError(
                f"{type(self).__name__}(signal='batch'): it sees one gradient per group: set group to the batch size, or "
                "to a divisor of it (the batch is then taken in passes of that size)"
            )
        if self.signal == "forward" and self.sign != "greedy":
            raise UserError(
                f"{type(self).__name__}(signal='forward', sign={self.sign!r}): forward mode tells no norms, which this sign rule "
                "needs: use sign = greedy, or signal = exact"
            )
        self.refuse()

    def refuse(self) -> None:
        """Refuse what only this order cannot do, with a `UserError` that says the fix."""

    def init_state(self) -> None:
        self.watch_through(signal_of(self.signal, self.group))
        self.balancer = self.make()

    @abstractmethod
    def make(self) -> Balancer:
        """The balancer of a fresh worker."""

    def epoch(self, number: int) -> np.ndarray:
        return self.balancer.epoch(number)

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        self.balancer.observe(positions, view)

    @property
    def herding(self) -> float:
        """The largest prefix norm of the last whole epoch, as a part of a random order's. All workers ask together."""
        return self.balancer.measure.read()

    @property
    def learned(self) -> dict[str, Any]:
        return self.balancer.state()

    @learned.setter
    def learned(self, state: dict[str, Any]) -> None:
        self.balancer.load(state)
