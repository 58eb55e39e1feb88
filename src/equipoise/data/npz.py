"""Arrays from `.npy` and `.npz` files that anybody may have written: a header is compared with the file before it is
believed, because numpy would allocate whatever it asks for.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ..core.errors import DataError, UserError
from ..core.memory import require_memory
from .files import read_bytes

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY, ZIP = b"\x93NUMPY", b"PK"  # how the files begin


def npz_arrays(raw: bytes, names: tuple[str, ...]) -> list[np.ndarray]:
    """The named arrays of a file."""
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        for name in names:
            if f"{name}.npy" not in file.namelist():
                raise DataError(f"no array {name!r}: it must hold {', '.join(names)}")
            entry = file.getinfo(f"{name}.npy")
            require_memory(entry.file_size, f"its array {name!r}")
            with file.open(entry) as part:
                _check_header(part, entry.file_size, name)
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return [arrays[name] for name in names]


def arrays_of(path: Path, option: str) -> dict[str, np.ndarray]:
    """Every array of an `.npz` file by its name, or that of an `.npy` file under the name ""."""
    raw = read_bytes(path, option)
    try:
        if raw.startswith(NPY):
            _check_header(io.BytesIO(raw), len(raw), path.name)
            return {"": np.load(io.BytesIO(raw), allow_pickle=False)}
        if raw.startswith(ZIP):
            with zipfile.ZipFile(io.BytesIO(raw)) as file:
                names = tuple(name.removesuffix(".npy") for name in file.namelist())
                if not all(name.endswith(".npy") for name in file.namelist()):
                    raise DataError(
                        f"a zip file that numpy did not write, neither an .npy nor an .npz: check --data.{option}"
                    )
            return dict(zip(names, npz_arrays(raw, names), strict=True))
    except UserError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged file raises whatever the damage hits: zipfile, zlib, struct, numpy
        raise DataError(f"{path}: damaged ({type(error).__name__}): write it again") from None
    raise DataError(f"{path}: neither an .npy nor an .npz file: check --data.{option}")


def _check_header(part: IO[bytes], size: int, name: str) -> None:
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(part)](part)
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects")  # pickled, hence never loaded
    if part.tell() + math.prod(shape) * dtype.itemsize != size:
        raise DataError(f"the header of {name!r} says {shape} and the file does not hold that")
