"""TensorBoard: event files in RUN/tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Tracker


class TensorBoard(Tracker):
    """In the folder `tensorboard` of the run; without a folder in `runs/` as TensorBoard does."""

    def start(self, folder: Path | None, choices: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.board = SummaryWriter(None if folder is None else str(folder / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def stop(self) -> None:
        self.board.close()
