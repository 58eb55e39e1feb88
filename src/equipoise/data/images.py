"""Pictures in folders: one subfolder for each class."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..core.errors import DataError
from ..core.extras import require
from ..core.memory import require_memory
from ..core.method import Metadata, option
from .base import Data, LoadedData, examples
from .files import given, normalised
from .split import class_numbers, held_out_mask

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_SPLITS = {"train", "training", "test", "val", "valid", "validation"}


@dataclass
class ImageFolder(Data):
    """Inputs [3, height, width] float32 ([1, ...] if grey), normalised by channel; a class for each subfolder.

    The classes are the sorted names of the subfolders, as numbers where all are integers; pictures are sorted by name,
    also those of folders further down. Mean and deviation of a channel are those of the training part (`notes` has
    "mean", "std"). All pictures must have one size, or `size` resizes them: scaled until they cover a square of that
    side, the middle of which is kept. Without a test folder a part of every class is held out.
    """

    metadata: ClassVar[Metadata] = Metadata(name="images", help="a folder of pictures, with one subfolder per class")

    path: str = option("", help="folder to train on")
    test_path: str = option("", help="folder to test on; empty: a part of every class is held out")
    size: int | None = option(None, help="resize to squares with this many pixels a side", least=1)
    grey: bool = option(False, help="one channel instead of three")
    test: float = option(0.2, help="fraction of every class that is held out, without test folder", above=0, below=1)
    seed: int = option(0, help="seed of the split", least=0)
    limit: int | None = option(None, help="read only this many training pictures, spread over the classes", least=1)

    def load(self) -> LoadedData:
        files, names = _pictures(given(self.path, "images", "path", "a folder with one subfolder per class"), "path")
        classes = class_numbers(names)
        if len(classes) < 2:
            raise DataError(f"{self.path}: one subfolder, {names[0]!r}: there must be one for each class")
        y = np.array([classes[name] for name in names], np.int64)
        if self.test_path:
            test_files, test_names = _pictures(Path(self.test_path).expanduser(), "test_path")
            for name, file in zip(test_names, test_files, strict=True):
                if name not in classes:
                    raise DataError(f"{file}: no training picture has the class {name!r}: check --data.test_path")
            test_y = np.array([classes[name] for name in test_names], np.int64)
        else:
            is_test = held_out_mask(len(y), self.test, self.seed, y)
            test_files, test_y = [file for file, out in zip(files, is_test, strict=True) if out], y[is_test]
            files, y = [file for file, out in zip(files, is_test, strict=True) if not out], y[~is_test]
        if self.limit is not None:
            chosen = np.sort(np.random.default_rng(self.seed).permutation(len(y))[: self.limit])
            files, y = [files[i] for i in chosen], y[chosen]
        pixels = self._read([*files, *test_files])
        train = pixels[: len(files)]
        mean, std = _statistics(train)
        return LoadedData(
            train=examples(normalised(train, mean, std), y, self.path),
            test=examples(normalised(pixels[len(files) :], mean, std), test_y, self.test_path or self.path),
            task="classify",
            outputs=len(classes),
            shape=pixels.shape[1:],
            notes={
                "files": [self.path, self.test_path or self.path],
                "classes": list(classes),
                "mean": mean,
                "std": std,
            },
        )

    def _read(self, files: list[Path]) -> np.ndarray:
        """The pixels [pictures, channels, height, width]; sizes are looked at before memory is taken."""
        image_module = require("PIL.Image", "images", "reading pictures")
        channels = 1 if self.grey else 3
        pixels, first = np.empty(0, np.uint8), (0, 0)
        for i, file in enumerate(files):
            with _opened(image_module, file) as picture:
                size = picture.size if self.size is None else (self.size, self.size)
                if i == 0:
                    first = size
                    shape = (len(files), channels, size[1], size[0])
                    require_memory(5.0 * np.prod(shape, dtype=float), f"{len(files):,} pictures")
                    pixels = np.empty(shape, np.uint8)
                elif size != first:
                    raise DataError(
                        f"{file}: {size[0]} x {size[1]} pixels, but {files[0].name} has {first[0]} x {first[1]}: pass "
                        "--data.size N to resize all of them"
                    )
                pixels[i] = self._array(image_module, picture, file)
        return pixels

    def _array(self, image_module: Any, picture: Any, file: Path) -> np.ndarray:
        if picture.mode not in _MODES:
            raise DataError(f"{file}: pixels of mode {picture.mode}, not of 8 bits a channel: convert it")
        try:
            picture = picture.convert("L" if self.grey else "RGB")
            if self.size is not None:
                width, height = picture.size
                side = min(width, height)
                left, top = (width - side) / 2, (height - side) / 2
                box = (left, top, left + side, top + side)
                picture = picture.resize((self.size, self.size), image_module.Resampling.BILINEAR, box)
            array = np.asarray(picture)
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error ... for damaged pictures
            raise DataError(f"{file}: damaged ({type(error).__name__}): remove or replace it") from None
        return array[None] if self.grey else array.transpose(2, 0, 1)


def _pictures(folder: Path, option_name: str) -> tuple[list[Path], list[str]]:
    """Every picture of a folder with its class."""
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder: check --data.{option_name}")
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if below and {path.name.lower() for path in below} <= _SPLITS:
        flags = [f"--data.{'path' if path.name.lower().startswith('train') else 'test_path'} {path}" for path in below]
        raise DataError(f"{folder}: its folders are parts, not classes: pass {' '.join(flags)}")
    files, names = [], []
    for path in below:
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if not found:
            raise DataError(f"{path}: no pictures ({', '.join(sorted(_SUFFIXES))}): add some or remove the folder")
        files += found
        names += [path.name] * len(found)
    if not files:
        raise DataError(f"{folder}: no subfolders with pictures: make one for each class, check --data.{option_name}")
    return files, names


def _opened(image_module: Any, file: Path) -> Any:
    """The picture, its pixels not yet read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        try:
            return image_module.open(file, formats=_FORMATS)
        except (image_module.DecompressionBombWarning, image_module.DecompressionBombError):
            raise DataError(f"{file}: more than {image_module.MAX_IMAGE_PIXELS:,} pixels: make it smaller") from None
        except Exception as error:
            raise DataError(f"{file}: damaged ({type(error).__name__}): remove or replace it") from None


def _statistics(pixels: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every channel, in 0..1; from counts, so that no second copy is made."""
    mean, std = [], []
    values = np.arange(256) / 255
    for channel in range(pixels.shape[1]):
        counts = sum(np.bincount(picture[channel].reshape(-1), minlength=256) for picture in pixels)
        share = counts / np.sum(counts)
        centre = float(share @ values)
        mean.append(centre)
        std.append(max(float(share @ (values - centre) ** 2) ** 0.5, 1 / 255))  # pictures of one colour have none
    return tuple(mean), tuple(std)
