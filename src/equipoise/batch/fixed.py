from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Batch


@dataclass
class Fixed(Batch):
    """One size for all workers, or a list with one size each (large for fast workers, small for slow ones)."""

    metadata: ClassVar[Metadata] = Metadata(name="fixed", help="one size, or one per worker")

    size: int | list[int] = option(32, help="examples per step and worker: a number, or one per worker", least=1)

    def init_state(self) -> None:
        if isinstance(self.size, list) and len(self.size) != self.context.size:
            raise UserError(
                f"batch.size lists {len(self.size)} sizes for {self.context.size} workers: give one number, "
                "or one per worker"
            )
        self._sizes = self.size if isinstance(self.size, list) else [self.size] * self.context.size

    def sizes(self) -> list[int]:
        return self._sizes
