"""Trackers: where the numbers of a run are shown beside the run's own folder."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError, did_you_mean
from ..core.extras import require

TRACKERS = {"tensorboard": "TensorBoard", "wandb": "WeightsAndBiases", "mlflow": "MLflow"}  # by module and extra


class Tracker(ABC):
    """Shows the numbers of a run. The first worker alone calls it: `start` before the first number, then `log`."""

    @abstractmethod
    def start(self, folder: Path | None, choices: Mapping[str, Any]) -> None:
        """A run with these choices begins, or goes on. folder: that of the run, if it has one."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers after so many steps, by names such as `loss/train` or `accuracy/mean`."""

    @abstractmethod
    def stop(self) -> None:
        """The run has ended, or failed."""


def chosen_trackers(track: str | Tracker | Sequence[str | Tracker] | None) -> list[Tracker]:
    """Trackers by name, separated by commas, or as objects. A package that is missing is named here."""
    if track is None:
        return []
    if isinstance(track, str):
        track = [name.strip() for name in track.split(",")]
    return [_named(one) if isinstance(one, str) else one for one in ([track] if isinstance(track, Tracker) else track)]


def _named(name: str) -> Tracker:
    if name not in TRACKERS:
        raise UserError(f"track = {name!r}: {did_you_mean(name, list(TRACKERS))}")
    require(name, name, f"track={name}")
    module = importlib.import_module(f".{name}", __package__)
    tracker: Tracker = getattr(module, TRACKERS[name])()
    return tracker
