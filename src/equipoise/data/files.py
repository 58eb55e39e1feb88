"""What the loaders share: reading files with errors that name them, ranking words, scaling pixels."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from ..core.errors import DataError
from ..core.memory import require_memory

_PIECE = 1 << 24  # bytes that are unpacked at a time


def given(value: str, who: str, option: str, hint: str) -> Path:
    """The path that the user passed as `--data.<option>`; an empty one is refused with the hint."""
    if not value:
        raise DataError(f"{who} needs your own files: pass --data.{option} ({hint}); nothing is downloaded")
    # A shell does not expand the ~ of `--data.dir=~/x`, and neither does a recipe.
    return Path(value).expanduser()


def folder(value: str, who: str, hint: str) -> Path:
    """The folder that the user passed as `--data.dir`."""
    path = given(value, who, "dir", hint)
    if not path.is_dir():
        raise DataError(f"{path}: not a folder: pass the one with the files of {who} as --data.dir")
    return path


def read_bytes(path: Path, option: str) -> bytes:
    """The contents of the file, unpacked if its first bytes (not its name) say that it is gzip."""
    try:
        require_memory(path.stat().st_size, str(path))
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file: check --data.{option}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): check --data.{option}") from None
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return _unpacked(raw, path)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}): fetch it again") from None
    except MemoryError:
        raise DataError(f"{path}: too large for the memory of this machine once it is unpacked") from None


def _unpacked(raw: bytes, path: Path) -> bytes:
    """A piece at a time: nothing in the file says how large it will be."""
    pieces, size, rest = [], 0, raw
    while rest:  # one member after the other
        engine = zlib.decompressobj(wbits=31)
        while not engine.eof:
            piece = engine.decompress(rest, _PIECE)
            rest = engine.unconsumed_tail
            if not piece and not rest and not engine.eof:
                raise EOFError("it ends in the middle")
            pieces.append(piece)
            size += len(piece)
            require_memory(2.0 * size, f"{path}, unpacked,")
        rest = engine.unused_data.lstrip(b"\0")
    return b"".join(pieces)


def read_text(path: Path, option: str) -> str:
    """The file as UTF-8, without a byte order mark."""
    try:
        return read_bytes(path, option).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}): convert it to UTF-8") from None


def ranked(counts: Counter[str], most: int | None, least: int = 1) -> list[str]:
    """At most `most` words that occur at least `least` times: the most frequent first, ties in alphabetical order."""
    words = (word for word, count in counts.items() if count >= least)
    return sorted(words, key=lambda word: (-counts[word], word))[:most]


def held_out(n: int) -> int:
    """How many of `n` examples, taken from the end, are the test part where the user gave no test file."""
    return max(1, n // 10)


def normalised(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """Bytes [N, C, H, W] to float32, each channel shifted and scaled."""
    x = pixels.astype(np.float32)
    # In place: CIFAR-10 is 0.6 GB as float32, and every temporary would be as large again.
    x /= 255
    x -= np.array(mean, np.float32)[:, None, None]
    x /= np.array(std, np.float32)[:, None, None]
    return x
