from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from .cast import Cast


@dataclass
class Float32(Cast):
    """Vectors travel as they are, in the dtype of the model: m = d. The default.

    Stores nothing and sends 4 bytes per element (8 for a model in float64). Exact with every sync.
    """

    metadata: ClassVar[Metadata] = Metadata(name="float32", help="vectors as they are (the default)")

    plain: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype] = torch.float32
