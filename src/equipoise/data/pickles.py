"""Pickled arrays from untrusted files: an unrestricted pickle may call any function that it names."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError
from .files import read_bytes


def unpickled(path: Path, option: str) -> Any:
    """The built-in values and numpy arrays of a pickle, also one of Python 2 (whose strings become bytes)."""
    raw = read_bytes(path, option)
    try:
        return _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: refused: {error}") from None
    except Exception as error:  # bytes that are not a pickle can raise anything
        raise DataError(f"{path}: damaged pickle ({type(error).__name__}): fetch it again") from None


def _dtype(spec: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    # Python 2 pickled align=0, which numpy 2.4 warns about.
    dtype: np.dtype[Any] = np.dtype(spec, bool(align), bool(copy))
    return dtype


# Taken from an array, because the module that holds it has moved between versions of numpy.
_RECONSTRUCT = np.empty(0).__reduce__()[0]

_PERMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PERMITTED:
            raise DataError(f"it calls {module}.{name}, which no file of arrays needs: get it from its source")
        return _PERMITTED[module, name]
