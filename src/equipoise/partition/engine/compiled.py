"""`compiled`: a function compiled by numba when it is first called, and cached on disk for the next run.

There is no plain Python version for machines without numba: the loops are quadratic in the size of a class, a few
seconds of machine code for 5000 examples and hours of interpreter, and numpy's scalars overflow differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy.typing as npt

from ...core.extras import require

numba = require("numba", "partition", "the submodular partition")

F = TypeVar("F", bound=Callable[..., Any])
Array: TypeAlias = npt.NDArray[Any]


def compiled(function: F) -> F:
    """Compile without the interpreter's lock, so that classes run in parallel threads. Float sums are not reordered."""
    try:
        machine_code: F = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for the cache: the package and the home folder are both read-only
        machine_code = numba.njit(nogil=True)(function)
    return machine_code
