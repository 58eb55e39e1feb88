"""Warnings and threads of other packages."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any


def quiet(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Without the warnings of other packages, which are errors to pytest, and on one thread.

    Accelerate would choose several where nobody has, and those of a parent that was forked are not there.
    """

    def loop(rank: int) -> Any:
        os.environ["OMP_NUM_THREADS"] = "1"
        state = sys.modules.get("accelerate.state")
        if state is not None:
            state.AcceleratorState._reset_state(True)  # of what the parent has done alone
        warnings.simplefilter("ignore")
        return function(rank)

    return loop
