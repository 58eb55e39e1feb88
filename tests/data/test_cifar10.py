import io
import os
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.core.errors import DataError, UserError
from equipoise.data import CIFAR10

MEAN = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
STD = np.array([0.2470, 0.2435, 0.2616])[:, None, None]
SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def write_npz(path: Path, images: np.ndarray, labels: list[int]) -> None:
    from PIL import Image

    files = []
    for image in images:
        out = io.BytesIO()
        Image.fromarray(image).save(out, "JPEG", quality=95)
        files.append(out.getvalue())
    offsets = np.cumsum([0, *map(len, files)])
    jpeg = np.frombuffer(b"".join(files), np.uint8)
    np.savez(path, jpeg=jpeg, offsets=offsets, labels=np.array(labels, np.uint8))


def plain_images(n: int) -> np.ndarray:
    """Images of one colour each, which JPEG keeps almost as they are."""
    colours = np.random.default_rng(0).integers(0, 256, (n, 1, 1, 3), dtype=np.uint8)
    return np.broadcast_to(colours, (n, 32, 32, 3)).copy()


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    write_npz(tmp_path / "cifar10-train.npz", plain_images(6), [3, 1, 4, 1, 5, 9])
    write_npz(tmp_path / "cifar10-test.npz", plain_images(2), [2, 6])
    return tmp_path


def python2(data: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote it: strings as bytes, numpy.core, dtype('u1', 0, 1)."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def dtype() -> bytes:
        state = b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"t"
        return b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R" + state + b"b"

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    )
    shape = number(data.shape[0]) + number(data.shape[1]) + b"\x86"
    array += b"(" + number(1) + shape + dtype() + b"\x89" + text(data.tobytes()) + b"tb"
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    below = tmp_path / "cifar-10-batches-py"
    below.mkdir()
    for i in range(1, 6):
        (below / f"data_batch_{i}").write_bytes(python2(rows(3, i), [i, 0, 9]))
    (below / "test_batch").write_bytes(python2(rows(2, 6), [7, 8]))
    return tmp_path


def refused(folder: Path | str, match: str, **options: int) -> None:
    with pytest.raises(DataError, match=match) as caught:
        CIFAR10(dir=str(folder), **options).load()
    assert "\n" not in str(caught.value)


def test_npz(npz: Path) -> None:
    loaded = CIFAR10(dir=str(npz)).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("classify", 10, (3, 32, 32))
    assert loaded.train.x.shape == (6, 3, 32, 32)
    assert (loaded.train.x.dtype, loaded.train.y.dtype) == (torch.float32, torch.int64)
    assert loaded.train.y.tolist() == [3, 1, 4, 1, 5, 9]
    assert loaded.test.y.tolist() == [2, 6]
    pixels = loaded.train.x.numpy() * STD + MEAN
    assert np.abs(pixels - plain_images(6).transpose(0, 3, 1, 2) / 255).max() < 0.02


def test_npz_decodes_no_more_than_the_limit(npz: Path) -> None:
    full = CIFAR10(dir=str(npz)).load()
    path = npz / "cifar10-train.npz"
    with np.load(path) as parts:
        jpeg, offsets, labels = parts["jpeg"].copy(), parts["offsets"], parts["labels"]
    jpeg[offsets[2] : offsets[3]] = 0
    np.savez(path, jpeg=jpeg, offsets=offsets, labels=labels)
    refused(npz, "image 2 is damaged")
    some = CIFAR10(dir=str(npz), limit=2, test_limit=1).load()
    assert some.train.x.equal(full.train.x[:2])
    assert some.test.x.equal(full.test.x[:1])


def test_npz_without_pillow(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"reading JPEG images needs pillow: pip install 'equipoise\[images\]'"):
        CIFAR10(dir=str(npz)).load()


def test_npz_damaged(npz: Path) -> None:
    path = npz / "cifar10-test.npz"
    intact = path.read_bytes()
    for damaged in (intact[: len(intact) // 2], b"", b"no zip at all", intact[:300] + bytes(50) + intact[350:]):
        path.write_bytes(damaged)
        refused(npz, "cifar10-test.npz: damaged npz")
    path.unlink()
    refused(npz, "cifar10-test.npz: no such file")


def test_npz_with_other_contents(npz: Path) -> None:
    path = npz / "cifar10-test.npz"
    with np.load(path) as loaded:
        parts = dict(loaded)
    np.savez(path, jpeg=parts["jpeg"], labels=parts["labels"])
    refused(npz, "no array .offsets.: it must hold jpeg, offsets, labels")
    for offsets in ([0, 5], [0, 5, 10**9], [5, 4, 6], [[0, 1, 2]], [0.0, 1.0, 2.0], [-1, 5, 9]):
        np.savez(path, **{**parts, "offsets": np.array(offsets)})
        refused(npz, "do not belong together")
    np.savez(path, **{**parts, "labels": np.array([1, 10])})
    refused(npz, "labels must be whole numbers from 0 to 9")
    np.savez(path, **{**parts, "labels": np.array([1, None])})  # pickled by numpy, hence never loaded
    refused(npz, "damaged npz")
    write_npz(path, plain_images(2)[:, :16], [1, 2])
    refused(npz, "image 0 is 32 x 16")


@pytest.mark.parametrize("inside", [False, True])
def test_batches_as_python_2_wrote_them(batches: Path, inside: bool) -> None:
    where = batches / "cifar-10-batches-py" if inside else batches
    loaded = CIFAR10(dir=str(where)).load()
    assert loaded.train.x.shape == (15, 3, 32, 32)
    assert loaded.train.y.tolist() == [label for i in range(1, 6) for label in (i, 0, 9)]
    assert loaded.test.y.tolist() == [7, 8]
    expected = (rows(2, 6).reshape(2, 3, 32, 32) / 255 - MEAN) / STD
    np.testing.assert_allclose(loaded.test.x, expected, atol=1e-5)


@pytest.mark.parametrize("protocol", [3, 4])
def test_batches_as_python_3_writes_them(batches: Path, protocol: int) -> None:
    path = batches / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps({b"data": rows(2, 6), b"labels": [7, 8]}, protocol))
    assert CIFAR10(dir=str(batches)).load().test.y.tolist() == [7, 8]


def test_batches_read_no_more_than_the_limit(batches: Path) -> None:
    full = CIFAR10(dir=str(batches)).load()
    (batches / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"")
    some = CIFAR10(dir=str(batches), limit=4, test_limit=1).load()
    assert some.train.x.equal(full.train.x[:4])
    assert len(some.test) == 1
    refused(batches, "data_batch_3: damaged pickle")


class Evil:
    def __init__(self, call: object, *arguments: object):
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.mkdir, eval, np.load, getattr])
def test_malicious_pickles_are_refused_and_not_run(batches: Path, protocol: int, call: object) -> None:
    mark = batches / "mark"
    argument = f"open({str(mark)!r}, 'w')" if call is eval else str(mark)
    path = batches / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Evil(call, argument), b"labels": [1]}, protocol))
    refused(batches, r"data_batch_1: refused: it calls \w+.*(mkdir|eval|load|getattr|encode)")
    assert not mark.exists()


def test_batches_with_other_contents(batches: Path) -> None:
    path = batches / "cifar-10-batches-py" / "test_batch"
    good = {b"data": rows(2, 6), b"labels": [7, 8]}
    for other, match in (
        ([1, 2], "no arrays named"),
        (np.zeros(3), "no arrays named"),
        ({b"data": good[b"data"]}, "no arrays named"),
        ({**good, b"labels": [7]}, "3072 bytes for each label"),
        ({**good, b"labels": [[7], [8]]}, "3072 bytes for each label"),
        ({**good, b"labels": 7}, "3072 bytes for each label"),
        ({**good, b"data": b"bytes"}, "3072 bytes for each label"),
        ({**good, b"data": np.full((2, 3072), np.nan)}, "3072 bytes for each label"),
        ({**good, b"labels": [7, 10]}, "from 0 to 9"),
        ({**good, b"labels": [7.5, 1]}, "from 0 to 9"),
    ):
        path.write_bytes(pickle.dumps(other, 4))
        refused(batches, f"test_batch: .*{match}")
    path.write_bytes(pickle.dumps(good, 4)[:-200])
    refused(batches, "test_batch: damaged pickle")
    path.unlink()
    refused(batches, "test_batch: no such file")


def test_no_folder_or_an_empty_one(tmp_path: Path) -> None:
    refused("", r"--data\.dir")
    refused(tmp_path, "neither cifar10-train.npz nor data_batch_1")


@pytest.mark.skipif(not (SHARED / "cifar10-train.npz").exists(), reason="the real files are not here")
def test_the_real_files() -> None:
    loaded = CIFAR10(dir=str(SHARED), limit=300, test_limit=300).load()
    assert abs(loaded.train.x.mean()) < 0.1
    assert abs(loaded.train.x.std() - 1) < 0.1
    assert set(loaded.test.y.tolist()) == set(range(10))
