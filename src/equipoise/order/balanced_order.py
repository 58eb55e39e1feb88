"""The base of all balanced orders: GraB, PairBalance, ID-GraB and CD-GraB."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..core.errors import UserError
from ..core.method import option
from ..signal import SIGNALS, signal_of
from ..signal.base import GradientView
from .base import Order
from .epoch_builder import EpochBuilder
from .sign_rules import SIGN_RULES

_SIGNAL = "which gradients it uses: exact per-example ones, forward mode, a sketch, the last layer, or one per group"


@dataclass
class BalancedOrder(Order):
    """An order that assigns signs to gradients. A method fills `make_builder`. Final here: options, epochs, state."""

    watches: ClassVar[bool] = True
    LATE: ClassVar[dict[str, type]] = {"total": torch.Tensor, "prefix": torch.Tensor, "carried": dict}
    STATE: ClassVar[tuple[str, ...]] = ("learned",)
    HEALTH: ClassVar[tuple[str, ...]] = ("herding",)

    signal: str = option("exact", help=_SIGNAL, choices=tuple(SIGNALS))
    sign: str = option("greedy", help="sign rule", choices=tuple(SIGN_RULES))
    group: int = option(1, help="examples that stay together and are ordered as one unit", least=1)

    def check(self) -> None:
        if self.signal == "batch" and self.group == 1:
            raise UserError(
                f"{type(self).__name__}(signal='batch'): it has one gradient per group: set group to the batch size, "
                "or to a divisor of it (the batch then takes one pass per group)"
            )
        if self.signal == "forward" and self.sign != "greedy":
            raise UserError(
                f"{type(self).__name__}(signal='forward', sign={self.sign!r}): forward mode gives no norms, which this "
                "sign rule needs: use sign = greedy, or signal = exact"
            )
        self.check_method()

    def check_method(self) -> None:
        """Refuse combinations that only this method cannot handle, with a `UserError` that says the fix."""

    def init_state(self) -> None:
        self.watch_through(signal_of(self.signal, self.group))
        self.builder = self.make_builder()

    @abstractmethod
    def make_builder(self) -> EpochBuilder:
        """The builder of a fresh worker: which terms get a sign, and how."""

    def epoch(self, number: int) -> np.ndarray:
        return self.builder.epoch(number)

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        self.builder.observe(positions, view)

    @property
    def herding(self) -> float:
        """The largest prefix norm of the last complete epoch, relative to a random order. Collective."""
        return self.builder.prefix_norm.read()

    @property
    def learned(self) -> dict[str, Any]:
        return {**self.builder.state(), "signal": self.watcher.state_dict()}

    @learned.setter
    def learned(self, state: dict[str, Any]) -> None:
        self.builder.load(state)
        if "signal" in state:  # checkpoints of 0.2.0 have none
            self.watcher.load_state_dict(state["signal"])
