import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.core import memory
from equipoise.core.errors import DataError, UserError
from equipoise.data import ImageFolder

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, colour: tuple[int, ...], size: tuple[int, int] = (10, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of five pictures: red is ten times the number, green tells the class."""
    for i in range(5):
        picture(tmp_path / "pets" / "10" / f"{i}.png", (10 * i, 0, 7))
        picture(tmp_path / "pets" / "9" / "deep" / f"{i}.PNG", (10 * i, 200, 7))
    (tmp_path / "pets" / "9" / "notes.txt").write_text("no picture")
    (tmp_path / "pets" / ".cache").mkdir()
    return tmp_path / "pets"


def test_pictures_by_class(folder: Path) -> None:
    loaded = ImageFolder(path=str(folder)).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("classify", 2, (3, 8, 10))
    assert loaded.notes["classes"] == ["9", "10"], "sorted as numbers"
    assert (len(loaded.train), len(loaded.test)) == (8, 2)
    assert sorted(loaded.test.y.tolist()) == [0, 1]
    mean, std = (torch.tensor(loaded.notes[name])[:, None, None] for name in ("mean", "std"))
    for part in (loaded.train, loaded.test):
        pixels = (part.x * std + mean) * 255
        assert ((pixels[:, 1, 0, 0] > 100).long() == 1 - part.y).all()
        torch.testing.assert_close(pixels[:, 2], torch.full_like(pixels[:, 2], 7.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(loaded.train.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(loaded.train.x[:, :2].std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_a_test_folder_and_a_limit(folder: Path) -> None:
    loaded = ImageFolder(path=str(folder), test_path=str(folder), limit=3, grey=True).load()
    assert (len(loaded.train), len(loaded.test), loaded.shape) == (3, 10, (1, 8, 10))
    picture(folder.parent / "other" / "cats" / "x.png", (1, 2, 3))
    with pytest.raises(DataError, match="x.png: no training picture has the class 'cats'"):
        ImageFolder(path=str(folder), test_path=str(folder.parent / "other")).load()


def test_unlike_sizes_are_refused_or_resized(folder: Path) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, :8] = 50
    wide[:, 8:16] = 100
    Image.fromarray(wide).save(folder / "10" / "wide.png")
    with pytest.raises(DataError, match=r"wide.png: 24 x 8 pixels, but 0.png has 10 x 8: pass --data.size N"):
        ImageFolder(path=str(folder), test=0.01).load()
    loaded = ImageFolder(path=str(folder), size=4, test_path=str(folder)).load()
    assert loaded.shape == (3, 4, 4)
    pixels = (loaded.test.x * torch.tensor(loaded.notes["std"])[:, None, None]) * 255
    middle = pixels + torch.tensor(loaded.notes["mean"])[:, None, None] * 255
    assert (middle[5, :, :, 1:3].round() == 100).all(), "the middle of the picture, as high as it is wide"


def test_bad_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, match: str) -> None:
        with pytest.raises(DataError, match=match) as caught:
            ImageFolder(path=str(path)).load()
        assert "\n" not in str(caught.value)

    with pytest.raises(DataError, match=r"^images needs .*--data\.path"):
        ImageFolder().load()
    refused(folder / "nowhere", "not a folder")
    refused(folder / "10", "10: no subfolders with pictures")
    refused(folder / "9", "one subfolder, 'deep'")
    (folder / "empty").mkdir()
    refused(folder, "empty: no pictures .*: add some or remove the folder")
    for part in ("train", "val"):
        picture(folder.parent / "split" / part / "cat" / "1.png", (1, 2, 3))
    refused(folder.parent / "split", r"parts, not classes: pass --data.path \S+train --data.test_path \S+val")
    (folder / "empty").rmdir()
    (folder / "10" / "bad.jpg").write_bytes(b"no picture")
    refused(folder, "bad.jpg: damaged")
    whole = (folder / "10" / "0.png").read_bytes()
    (folder / "10" / "bad.jpg").write_bytes(whole[: len(whole) // 2])
    refused(folder, "bad.jpg: damaged")
    picture(folder / "10" / "bad.jpg", (1,), mode="L")
    Image.fromarray(np.zeros((8, 10), np.uint16)).save(folder / "10" / "deep.png")
    refused(folder, "deep.png: pixels of mode I;16, not of 8 bits")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    refused(folder, "more than 50 pixels")


def test_sizes_and_a_missing_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="10 pictures would take .* GB of memory"):
        ImageFolder(path=str(folder), size=10**7).load()
    monkeypatch.setattr(memory, "memory", lambda: 1000.0)
    with pytest.raises(UserError, match="10 pictures would take"):
        ImageFolder(path=str(folder)).load()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"reading pictures needs pillow: pip install 'equipoise\[images\]'"):
        ImageFolder(path=str(folder)).load()
