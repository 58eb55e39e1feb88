"""What a partition may see of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import UserError

MODEL = "model"  # features of the model in training, which exist after its first epoch


@dataclass
class DatasetView:
    """The number of examples, their class labels (None if they have none), and the data itself."""

    examples: int
    labels: np.ndarray | None = None
    data: Any = None

    def classes(self, asker: str) -> np.ndarray:
        """The labels; a `UserError` that names the partition `asker` where there are none."""
        if self.labels is None:
            raise UserError(
                f"partition {asker} needs one class label per example; this data has none: use iid or contiguous"
            )
        return self.labels
