"""The base of all balanced orders: GraB, PairBalance, ID-GraB and CD-GraB."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from ..core.errors import UserError
from ..core.method import option
from ..signal import SIGNALS, signal_of
from ..signal.base import GradientView
from .base import Order
from .builder import Builder
from .kept_epoch import KeptEpoch
from .sign_rules import SIGN_RULES

_SIGNAL = (
    "which gradients it uses: exact per-example ones, forward mode, a sketch, the last layer, or one per group; auto: "
    "the last layer, exact where signs are needed while an epoch runs"
)
_SHORT = ("projection", "count-sketch", "last-layer")
_SWEEPS = 8


class Chosen(NamedTuple):
    signal: str
    every: int  # 0: as the kept vectors tell
    sweeps: int


@dataclass
class BalancedOrder(Order):
    """An order that assigns signs to gradients. A method fills `make_builder`. Final here: options, epochs, state."""

    watches: ClassVar[bool] = True
    LATE: ClassVar[dict[str, type]] = {
        "total": torch.Tensor,
        "prefix": torch.Tensor,
        "carried": dict,
        "rows": torch.Tensor,
    }
    STATE: ClassVar[tuple[str, ...]] = ("learned",)
    HEALTH: ClassVar[tuple[str, ...]] = ("herding",)

    signal: str = option("auto", help=_SIGNAL, choices=("auto", *SIGNALS))
    sign: str = option("greedy", help="sign rule", choices=tuple(SIGN_RULES))
    group: int = option(1, help="examples that stay together and are ordered as one unit", least=1)
    every: int = option(
        0,
        help="learn from one epoch of so many; 0: from every one where vectors are not kept, else as often as it pays",
        least=0,
    )
    sweeps: int = option(
        0,
        help="times that an epoch is balanced; above 1 its vectors, which must be short, are kept until it ends; "
        f"0: {_SWEEPS} for sketches, 1 for other signals",
        least=0,
    )

    @property
    def chosen(self) -> Chosen:
        """What the options mean where they leave the choice open: sketches that are kept, unless signs must stream."""
        kept = not self.streams and self.sweeps != 1
        signal = self.signal if self.signal != "auto" else "last-layer" if kept else "exact"
        sweeps = self.sweeps or (_SWEEPS if kept and signal in _SHORT else 1)
        return Chosen(signal, self.every or (0 if sweeps > 1 else 1), sweeps)

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
        if self.sweeps > 1 and self.signal == "forward":
            raise UserError(
                f"{type(self).__name__}(signal='forward', sweeps={self.sweeps}): forward mode gives no vectors that "
                "could be kept: use sweeps = 1, or signal = projection"
            )
        if self.sweeps > 1 and self.streams:
            raise UserError(
                f"{self!r}: sweeps balance an epoch after it has ended, and another option asks for signs while it "
                "runs: use sweeps = 1, or leave the other option out"
            )
        self.check_method()

    def check_method(self) -> None:
        """Refuse combinations that only this method cannot handle, with a `UserError` that says the fix."""

    def init_state(self) -> None:
        signal, _, sweeps = self.chosen
        self.watch_through(signal_of(signal, self.group, short=sweeps > 1))
        self.builder = self.make_builder()

    @property
    def streams(self) -> bool:
        """Do other options of this method ask for signs while gradients arrive? Then nothing is kept."""
        return False

    def keep(self, signature: tuple[float, ...]) -> KeptEpoch:
        """A builder that keeps sketches and balances them when an epoch ends, with other workers if `coordinated`."""
        _, every, sweeps = self.chosen
        return KeptEpoch(self.context, signature, self.group, every, self.sign, sweeps, self.coordinated)

    @abstractmethod
    def make_builder(self) -> Builder:
        """The builder of a fresh worker: which terms get a sign, and how."""

    @property
    def learning(self) -> bool:
        return self.builder.learning

    def epoch(self, number: int) -> np.ndarray:
        return self.builder.epoch(number)

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        if self.learning:
            self.builder.observe(positions, view)

    @property
    def herding(self) -> float:
        """The largest prefix norm, relative to a random order: of the last complete epoch, or of the order that was
        learned last on the sketches that it was learned from. Collective.
        """
        return self.builder.herding()

    @property
    def learned(self) -> dict[str, Any]:
        return {**self.builder.state(), "signal": self.watcher.state_dict()}

    @learned.setter
    def learned(self, state: dict[str, Any]) -> None:
        self.builder.load(state)
        if "signal" in state:  # checkpoints of 0.2.0 have none
            self.watcher.load_state_dict(state["signal"])
