"""Fashion-MNIST from the four idx files, plain or gzip."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..core.errors import DataError
from ..core.method import Metadata, option
from .base import Arrays, Data, LoadedData, examples
from .files import folder, normalised, read_bytes

MEAN, STD = (0.2860,), (0.3530,)


@dataclass
class FashionMNIST(Data):
    """60,000 + 10,000 pieces of clothing; inputs [1, 28, 28] float32, normalised, ten classes.

    Files: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same with `t10k`, each plain or `.gz`.
    MNIST has the same file names and sizes and can be read too. Source: Xiao, Rasul, Vollgraf (2017).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="fashion-mnist", help="idx files, plain or gzip, in --data.dir", cites=("xiao2017fashion",)
    )

    dir: str = option("", help="folder with the four idx files, plain or .gz")
    limit: int | None = option(None, help="keep only this many training examples, the first ones", least=1)
    test_limit: int | None = option(None, help="keep only this many test examples, the first ones", least=1)

    def load(self) -> LoadedData:
        hint = "the folder of the four idx files; Debian's package dataset-fashion-mnist holds them"
        where = folder(self.dir, "fashion-mnist", hint)
        return LoadedData(
            train=_part(where, "train", self.limit),
            test=_part(where, "t10k", self.test_limit),
            task="classify",
            outputs=10,
            shape=(1, 28, 28),
            notes={"files": [str(where)]},
        )


def _part(where: Path, name: str, limit: int | None) -> Arrays:
    image_file, images = _idx(where, f"{name}-images-idx3-ubyte", 3)
    label_file, labels = _idx(where, f"{name}-labels-idx1-ubyte", 1)
    if images.shape[1:] != (28, 28):
        size = " x ".join(map(str, images.shape[1:]))
        raise DataError(f"{image_file}: images of {size} pixels, not 28 x 28: not a file of Fashion-MNIST")
    if len(images) != len(labels):
        raise DataError(
            f"{label_file}: {len(labels)} labels for {len(images)} images of {image_file.name}: "
            "the two files do not belong together"
        )
    if len(labels) and labels.max() > 9:
        raise DataError(f"{label_file}: label {labels.max()}, but the classes are 0 to 9: not Fashion-MNIST")
    x = normalised(images[:limit, None], MEAN, STD)
    return examples(x, labels[:limit].astype(np.int64), str(image_file))


def _idx(where: Path, name: str, dimensions: int) -> tuple[Path, np.ndarray]:
    """The file and its array of bytes; the header must match the size of the file."""
    plain = where / name
    path = plain if plain.exists() else where / f"{name}.gz"
    if not path.exists():
        raise DataError(f"{plain}: no such file, nor {path.name}: check --data.dir")
    raw = read_bytes(path, "dir")
    head = 4 + 4 * dimensions
    # Two zero bytes, 8 for unsigned bytes, the number of dimensions: yann.lecun.com's idx format.
    magic = bytes([0, 0, 8, dimensions])
    if raw[:4] != magic:
        start = raw[:4].hex() or "nothing"
        raise DataError(f"{path}: begins with {start}, not {magic.hex()}: not the idx file of that name")
    if len(raw) < head:
        raise DataError(f"{path}: cut short within its header: fetch it again")
    shape = struct.unpack(f">{dimensions}I", raw[4:head])
    expected = head + math.prod(shape)
    if len(raw) != expected:
        state = "cut short" if len(raw) < expected else "too long"
        raise DataError(f"{path}: {state} ({len(raw)} bytes, its header says {expected}): fetch it again")
    return path, np.frombuffer(raw, np.uint8, offset=head).reshape(shape)
