from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from ..core.vector import ModelSize
from .base import Sync


@dataclass
class NoSync(Sync):
    """No communication: every worker trains on its own. Also used with a world size of 1, whatever sync was chosen."""

    metadata: ClassVar[Metadata] = Metadata(name="none", help="no communication: workers train alone")

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "none", "it sends nothing"

    def init_state(self) -> None: ...

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None: ...

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return 0, 0
