"""Weights & Biases: offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Tracker


class WeightsAndBiases(Tracker):
    """A run of its own in the folder `wandb` of the run, or the one that the program has begun.

    `wandb sync` uploads what was written offline.
    """

    def start(self, folder: Path | None, choices: Mapping[str, Any]) -> None:
        import wandb

        self.own = wandb.run is None
        self.run = wandb.run
        if self.own:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "equipoise"),
                name=None if folder is None else folder.name,
                dir=None if folder is None else str(folder),
                config=dict(choices),
                mode=os.environ.get("WANDB_MODE", "offline"),
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def stop(self) -> None:
        if self.own:
            self.run.finish()
