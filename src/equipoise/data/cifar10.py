"""CIFAR-10 from npz files with JPEG images, or from the usual `cifar-10-batches-py` folder."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..core.errors import DataError, UserError
from ..core.extras import require
from ..core.method import Metadata, option
from .base import Arrays, Data, LoadedData, examples
from .files import folder, normalised, read_bytes
from .npz import npz_arrays
from .pickles import unpickled

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass
class CIFAR10(Data):
    """50,000 + 10,000 small photographs; inputs [3, 32, 32] float32, normalised by channel, ten classes.

    Files: `cifar10-train.npz` and `cifar10-test.npz` (`jpeg`: all files concatenated, image i is
    `jpeg[offsets[i]:offsets[i+1]]`, `labels`), else the pickled batches of `cifar-10-batches-py`, in `dir` or
    below it. Source: Krizhevsky (2009).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="cifar10",
        help="npz with JPEG images, or the cifar-10-batches-py folder, in --data.dir",
        cites=("krizhevsky2009learning",),
    )

    dir: str = option("", help="folder with cifar10-{train,test}.npz or with cifar-10-batches-py")
    limit: int | None = option(None, help="read only this many training examples, the first ones", least=1)
    test_limit: int | None = option(None, help="read only this many test examples, the first ones", least=1)

    def load(self) -> LoadedData:
        hint = "the folder with cifar10-train.npz and cifar10-test.npz, or with cifar-10-batches-py"
        where = folder(self.dir, "cifar10", hint)
        npz = [where / "cifar10-train.npz", where / "cifar10-test.npz"]
        if any(path.exists() for path in npz):
            train, test = _from_npz(npz[0], self.limit), _from_npz(npz[1], self.test_limit)
        else:
            below = where / "cifar-10-batches-py"
            where = below if below.is_dir() else where
            if not (where / "data_batch_1").exists():
                raise DataError(f"{where}: neither cifar10-train.npz nor data_batch_1 is here: check --data.dir")
            train = _from_batches([where / f"data_batch_{i}" for i in range(1, 6)], self.limit)
            test = _from_batches([where / "test_batch"], self.test_limit)
        return LoadedData(train, test, "classify", 10, (3, 32, 32), notes={"files": [str(where)]})


def _from_npz(path: Path, limit: int | None) -> Arrays:
    image_module = require("PIL.Image", "images", f"{path}: reading JPEG images")
    try:
        jpeg, offsets, labels = npz_arrays(read_bytes(path, "dir"), ("jpeg", "offsets", "labels"))
    except UserError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged zip raises whatever the damage hits: zipfile, zlib, struct, numpy
        raise DataError(f"{path}: damaged npz file ({type(error).__name__}): fetch it again") from None
    if (
        {jpeg.ndim, offsets.ndim, labels.ndim} != {1}
        or jpeg.dtype != np.uint8
        or offsets.dtype.kind not in "iu"
        or len(offsets) != len(labels) + 1
        or offsets[0] < 0
        or offsets[-1] > len(jpeg)
        or (offsets[1:] < offsets[:-1]).any()
    ):
        raise DataError(f"{path}: jpeg, offsets and labels do not belong together: fetch it again")
    count = len(labels[:limit])
    pixels = np.empty((count, 3, 32, 32), np.uint8)
    for i in range(count):
        try:
            file = io.BytesIO(jpeg[offsets[i] : offsets[i + 1]].tobytes())
            image = np.asarray(image_module.open(file, formats=("JPEG",)).convert("RGB"))
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error ... for damaged images
            raise DataError(f"{path}: image {i} is damaged ({type(error).__name__}): fetch the file again") from None
        if image.shape != (32, 32, 3):
            raise DataError(f"{path}: image {i} is {image.shape[1]} x {image.shape[0]}, not 32 x 32: not CIFAR-10")
        pixels[i] = image.transpose(2, 0, 1)
    return _examples(path, pixels, labels[:limit])


def _from_batches(paths: list[Path], limit: int | None) -> Arrays:
    pixels, labels = [], []
    wanted = limit if limit is not None else np.inf
    for path in paths:
        if wanted <= 0:
            break
        batch = unpickled(path, "dir")
        try:
            data, classes = batch[b"data"], np.array(batch[b"labels"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise DataError(f"{path}: no arrays named data and labels: not a batch of CIFAR-10") from None
        is_pixels = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (classes.size, 3072)
        if classes.ndim != 1 or not is_pixels:
            raise DataError(f"{path}: data must be one row of 3072 bytes for each label: not a batch of CIFAR-10")
        pixels.append(data[:limit])
        labels.append(classes)
        wanted -= len(data)
    return _examples(paths[0], np.concatenate(pixels)[:limit].reshape(-1, 3, 32, 32), np.concatenate(labels)[:limit])


def _examples(path: Path, pixels: np.ndarray, labels: np.ndarray) -> Arrays:
    if labels.dtype.kind not in "iu" or (len(labels) and not 0 <= labels.min() <= labels.max() <= 9):
        raise DataError(f"{path}: labels must be whole numbers from 0 to 9: not CIFAR-10")
    return examples(normalised(pixels, MEAN, STD), labels.astype(np.int64), str(path))
