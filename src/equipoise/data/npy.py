"""Arrays from `.npz` files that anybody may have written: a header is compared with the file before it is believed."""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np

from ..core.errors import DataError
from ..core.memory import require_memory

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npz_arrays(raw: bytes, names: tuple[str, ...]) -> list[np.ndarray]:
    """The named arrays of a file. numpy would allocate whatever a header asks for, however short the file is."""
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        for name in names:
            if f"{name}.npy" not in file.namelist():
                raise DataError(f"no array {name!r}: it must hold {', '.join(names)}")
            entry = file.getinfo(f"{name}.npy")
            require_memory(entry.file_size, f"its array {name!r}")
            with file.open(entry) as part:
                version = np.lib.format.read_magic(part)
                shape, _, dtype = _HEADERS[version](part)
                if dtype.hasobject:
                    raise ValueError(f"{name!r} holds Python objects")  # pickled, hence never loaded
                if part.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
                    raise DataError(f"the header of {name!r} says {shape} and the file does not hold that")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return [arrays[name] for name in names]
