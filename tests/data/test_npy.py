import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.core.errors import DataError, UserError
from equipoise.data import NPY

RNG = np.random.default_rng(0)


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_pictures_with_a_test_part_of_their_own(tmp_path: Path) -> None:
    """As Keras writes MNIST."""
    x, y = RNG.integers(0, 256, (12, 8, 9), dtype=np.uint8), np.arange(12) % 3 + 5
    path = npz(tmp_path / "mnist.npz", x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    loaded = NPY(path=path, channels="none", limit=4).load()
    assert (loaded.task, loaded.outputs, loaded.shape, loaded.tokens) == ("classify", 3, (1, 8, 9), None)
    np.testing.assert_allclose(loaded.train.x[:, 0], x[:4] / 255, rtol=1e-6)
    np.testing.assert_allclose(loaded.test.x[:, 0], x[9:] / 255, rtol=1e-6)
    assert loaded.train.y.tolist() == [0, 1, 2, 0]
    assert loaded.notes["classes"] == [5, 6, 7]


def test_npy_files_to_regress_on_hold_out_a_part(tmp_path: Path) -> None:
    x = RNG.standard_normal((20, 3))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.stack([x.sum(1), x[:, 0]], 1))
    loaded = NPY(path=str(tmp_path / "x.npy"), target_path=str(tmp_path / "y.npy"), test=0.25).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("regress", 2, (3,))
    assert (len(loaded.train), len(loaded.test)) == (15, 5)
    assert loaded.train.x.dtype == loaded.train.y.dtype == torch.float32
    torch.testing.assert_close(loaded.train.y[:, 0], loaded.train.x.sum(1))
    assert sorted(torch.cat([loaded.train.x, loaded.test.x])[:, 0].tolist()) == sorted(np.float32(x[:, 0]).tolist())
    np.save(tmp_path / "one.npy", np.arange(20.0))
    flat = NPY(path=str(tmp_path / "one.npy"), target_path=str(tmp_path / "one.npy")).load()
    assert (flat.shape, flat.outputs) == ((1,), 1)


def test_names_channels_and_text_labels(tmp_path: Path) -> None:
    x = RNG.standard_normal((6, 8, 8, 3)).astype(np.float16)
    path = npz(tmp_path / "a.npz", pictures=x, names=np.array(["dog", "cat"] * 3)[:, None], other=np.zeros(2))
    loaded = NPY(path=path, inputs="pictures", targets="names", channels="last").load()
    assert loaded.shape == (3, 8, 8)
    assert loaded.notes["classes"] == ["cat", "dog"]
    assert loaded.train.x[0].equal(torch.from_numpy(x[0].transpose(2, 0, 1)).float())
    assert loaded.train.y[0] == 1


def test_tokens(tmp_path: Path) -> None:
    x = RNG.integers(0, 11, (10, 4))
    path = npz(tmp_path / "a.npz", x=x, y=np.arange(10) % 2)
    loaded = NPY(path=path, kind="tokens").load()
    assert (loaded.task, loaded.outputs, loaded.tokens) == ("classify", 2, int(x.max()) + 1)
    loaded = NPY(path=npz(tmp_path / "b.npz", x=x, y=x + 1), kind="tokens").load()
    assert (loaded.task, loaded.outputs, loaded.tokens) == ("language", int(x.max()) + 2, int(x.max()) + 2)
    assert loaded.train.y.equal(loaded.train.x + 1)


GOOD = {"x": np.zeros((4, 2)), "y": np.arange(4) % 2}


@pytest.mark.parametrize(
    ("arrays", "options", "match"),
    [
        ({"inputs": GOOD["x"], "y": GOOD["y"]}, {}, "no array 'x' nor 'x_train', it has inputs, y: pass --data.inputs"),
        (GOOD | {"y": np.zeros(3)}, {}, r"inputs have the shape \(4, 2\) and targets \(3,\)"),
        (GOOD | {"y": np.float64(3)}, {}, "the first axis must count the examples in both"),
        (GOOD | {"y": np.zeros(4, int)}, {}, "every example has the same target"),
        (GOOD | {"y": np.zeros((4, 3), int)}, {}, r"targets of the shape \(4, 3\) are no classes"),
        (GOOD | {"y": np.zeros(4, complex)}, {}, "targets of dtype complex128"),
        (GOOD | {"x": np.array([["a"]] * 4)}, {}, "inputs of dtype <U1 are no numbers"),
        (GOOD | {"x": np.full((4, 2), np.nan)}, {}, "NaN or infinity"),
        (GOOD | {"x": np.array([[None]] * 4)}, {}, "damaged"),
        (GOOD | {"x_test": np.zeros((1, 3)), "y_test": np.zeros(1, int)}, {}, "training inputs are"),
        (GOOD | {"x_test": np.zeros((1, 2)), "y_test": np.array([7])}, {}, "the target 7 is in no training example"),
        (GOOD, {"kind": "tokens"}, "inputs of dtype float64 are no tokens"),
        (GOOD | {"x": np.zeros((4, 2), int) - 1}, {"kind": "tokens"}, "tokens must be whole numbers from 0"),
        (GOOD, {"channels": "last"}, "have no channels"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=f"bad.npz: .*{match}") as caught:
        NPY(path=npz(tmp_path / "bad.npz", **arrays), **options).load()
    assert "\n" not in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(DataError, match="no such file"):
        NPY(path=str(path)).load()
    np.save(path, np.zeros(4))
    with pytest.raises(DataError, match=r"x.npy needs your own files: pass --data.target_path"):
        NPY(path=str(path)).load()
    with pytest.raises(DataError, match="not an .npy file: check --data.target_path"):
        NPY(path=str(path), target_path=npz(tmp_path / "y.npz", y=np.zeros(4))).load()
    whole, weights = path.read_bytes(), io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, weights)
    for damaged, match in (
        (whole[:-8], "the header of 'x.npy' says"),
        (whole[:9], "damaged"),
        (whole.replace(b"(4,)", b"(10000000000000,)"), "damaged|the header"),
        (b"1,2\n", "neither an .npy nor an .npz"),
        (weights.getvalue(), "neither an .npy nor an .npz"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"x.npy: .*{match}"):
            NPY(path=str(path), target_path=str(path)).load()
    with pytest.raises(UserError, match="first, last, none"):
        NPY(channels="middle")
