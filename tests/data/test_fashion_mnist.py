import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.core.errors import DataError
from equipoise.data import FashionMNIST

COUNTS = {"train": 6, "t10k": 3}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def files() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for part, n in COUNTS.items():
        made[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        made[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, n, dtype=np.uint8)
    return made


@pytest.fixture
def folder(tmp_path: Path, files: dict[str, np.ndarray]) -> Path:
    for name, array in files.items():
        (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def test_plain_files(folder: Path, files: dict[str, np.ndarray]) -> None:
    loaded = FashionMNIST(dir=str(folder)).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("classify", 10, (1, 28, 28))
    assert loaded.train.x.shape == (6, 1, 28, 28)
    assert loaded.train.x.dtype == torch.float32
    pixels = files["train-images-idx3-ubyte"].astype(np.float64)
    np.testing.assert_allclose(loaded.train.x[:, 0], (pixels / 255 - 0.2860) / 0.3530, atol=1e-5)
    np.testing.assert_array_equal(loaded.test.y, files["t10k-labels-idx1-ubyte"])
    assert loaded.test.y.dtype == torch.int64


def test_gzip_gives_the_same(folder: Path) -> None:
    plain = FashionMNIST(dir=str(folder)).load()
    for path in list(folder.iterdir()):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    packed = FashionMNIST(dir=str(folder)).load()
    assert packed.train.x.equal(plain.train.x)
    assert packed.test.y.equal(plain.test.y)


def test_limits(folder: Path) -> None:
    full = FashionMNIST(dir=str(folder)).load()
    some = FashionMNIST(dir=str(folder), limit=4, test_limit=2).load()
    assert some.train.x.equal(full.train.x[:4])
    assert some.test.y.equal(full.test.y[:2])


def refused(folder: Path | str, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        FashionMNIST(dir=str(folder)).load()
    assert "\n" not in str(caught.value)


def test_no_folder_given_says_where_the_files_are() -> None:
    refused("", r"--data\.dir .*dataset-fashion-mnist")


def test_missing_folder_and_file(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere: not a folder")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    refused(folder, "t10k-labels-idx1-ubyte: no such file, nor t10k-labels-idx1-ubyte.gz")


def test_truncated_too_long_and_header_cut(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    full = path.read_bytes()
    path.write_bytes(full[:-1])
    refused(folder, "train-images-idx3-ubyte: cut short")
    path.write_bytes(full + b"\0")
    refused(folder, "too long")
    path.write_bytes(full[:9])
    refused(folder, "within its header")
    path.write_bytes(b"")
    refused(folder, "begins with nothing")


def test_wrong_magic(folder: Path) -> None:
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    images.write_bytes(labels.read_bytes())
    refused(folder, "begins with 00000801, not 00000803")


@pytest.mark.parametrize("damage", ["cut", "flip", "header"])
def test_damaged_gzip(folder: Path, damage: str) -> None:
    path = folder / "train-labels-idx1-ubyte"
    raw = bytearray(gzip.compress(path.read_bytes()))
    path.unlink()
    if damage == "cut":
        raw = raw[:-9]
    elif damage == "flip":
        raw[-6] ^= 0xFF  # of the checksum
    else:
        raw[2] = 77  # an unknown way of packing
    (folder / f"{path.name}.gz").write_bytes(raw)
    refused(folder, "train-labels-idx1-ubyte.gz: damaged gzip")


def test_files_of_other_data(folder: Path) -> None:
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(5, np.uint8)))
    refused(folder, "5 labels for 6 images")
    labels.write_bytes(idx(np.full(6, 10, np.uint8)))
    refused(folder, "label 10")
    (folder / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((6, 8, 9), np.uint8)))
    refused(folder, "8 x 9 pixels")
