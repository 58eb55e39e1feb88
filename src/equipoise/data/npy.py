"""Arrays of numpy: an `.npz` file with inputs and targets, or an `.npy` file for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..core.errors import DataError
from ..core.memory import require_memory
from ..core.method import Metadata, option
from .base import Data, LoadedData, examples
from .files import given
from .npz import arrays_of
from .split import held_out_mask


class Part(NamedTuple):
    source: str
    inputs: np.ndarray
    targets: np.ndarray


@dataclass
class NPY(Data):
    """Inputs [...] float32 (bytes divided by 255), or [length] int64 for tokens; the first axis counts examples.

    An `.npz` file holds `x` and `y`, or `x_train` and `y_train`; `x_test` and `y_test` are the test part. Targets of
    whole numbers or text are classes, sorted; other numbers are regressed on; tokens with a target for each are a
    language model's. Without a test part a random one is held out, of every class alike.
    """

    metadata: ClassVar[Metadata] = Metadata(name="npy", help="numpy arrays: one .npz file, or .npy files")

    path: str = option("", help=".npz file with inputs and targets, or .npy file of the inputs")
    target_path: str = option("", help=".npy file of the targets")
    test_path: str = option("", help="the same for testing; empty: x_test of the .npz file, or a part is held out")
    test_target_path: str = option("", help=".npy file of the targets for testing")
    inputs: str = option("x", help="name of the inputs in an .npz file")
    targets: str = option("y", help="name of the targets in an .npz file")
    kind: str = option("numbers", help="what inputs are", choices=("numbers", "tokens"))
    channels: str = option(
        "first", help="where the channels of pictures stand; none: grey pictures", choices=("first", "last", "none")
    )
    test: float = option(0.2, help="fraction that is held out, without a test part", above=0, below=1)
    seed: int = option(0, help="seed of the split", least=0)
    limit: int | None = option(None, help="keep only this many training examples, the first ones", least=1)

    def load(self) -> LoadedData:
        path = given(self.path, "npy", "path", "an .npz file, or an .npy file with --data.target_path")
        arrays = arrays_of(path, "path")
        train = self._part(path, arrays, "_train", self.target_path, "target_path")
        test = None
        if self.test_path:
            path = Path(self.test_path).expanduser()
            arrays = arrays_of(path, "test_path")
            test = self._part(path, arrays, "_test", self.test_target_path, "test_target_path")
        elif f"{self.inputs}_test" in arrays:
            test = self._part(path, arrays, "_test", "", "")
        parts = [train] if test is None else [train, test]
        inputs = [self._inputs(part) for part in parts]
        if len({x.shape[1:] for x in inputs}) > 1:
            raise DataError(f"{path}: training inputs are {inputs[0].shape[1:]}, test inputs {inputs[1].shape[1:]}")
        tokens = 1 + max(int(x.max(initial=0)) for x in inputs) if self.kind == "tokens" else None
        language = tokens is not None and train.targets.shape == train.inputs.shape
        classify = not language and train.targets.dtype.kind in "iubUS"
        targets, classes = _classes(parts) if classify else (_values(parts, language), np.empty(0))
        if language:
            tokens = max(tokens or 0, *(1 + int(y.max(initial=0)) for y in targets))
        if test is None:
            is_test = held_out_mask(len(targets[0]), self.test, self.seed, targets[0] if classify else None)
            inputs, targets = [inputs[0][~is_test], inputs[0][is_test]], [targets[0][~is_test], targets[0][is_test]]
        return LoadedData(
            train=examples(inputs[0], targets[0], train.source, self.limit),
            test=examples(inputs[1], targets[1], parts[-1].source),
            task="language" if language else "classify" if classify else "regress",
            outputs=(tokens or 0) if language else len(classes) if classify else targets[0].shape[1],
            shape=inputs[0].shape[1:],
            tokens=tokens,
            notes={"files": [part.source for part in parts], "classes": classes.tolist()},
        )

    def _part(self, path: Path, arrays: dict[str, np.ndarray], suffix: str, target_path: str, option_name: str) -> Part:
        """Inputs and targets of one part."""
        if "" in arrays:
            hint = ".npy file of the targets, one for each of the inputs"
            targets = arrays_of(given(target_path, f"{path}", option_name, hint), option_name)
            if "" not in targets:
                raise DataError(f"{target_path}: not an .npy file: check --data.{option_name}")
            part = Part(str(path), arrays[""], targets[""])
        else:
            part = Part(str(path), *(_named(arrays, name, suffix, path) for name in (self.inputs, self.targets)))
        if min(part.inputs.ndim, part.targets.ndim) == 0 or len(part.inputs) != len(part.targets):
            raise DataError(
                f"{path}: inputs have the shape {part.inputs.shape} and targets {part.targets.shape}: the first axis "
                "must count the examples in both"
            )
        return part

    def _inputs(self, part: Part) -> np.ndarray:
        x = part.inputs
        if x.dtype.kind not in ("iu" if self.kind == "tokens" else "iubf"):
            raise DataError(f"{part.source}: inputs of dtype {x.dtype} are no {self.kind}: check --data.kind")
        require_memory(2.0 * x.nbytes + 8.0 * x.size, part.source)
        if self.kind == "tokens":
            if x.ndim != 2 or x.min(initial=0) < 0:
                raise DataError(f"{part.source}: tokens must be whole numbers from 0 in the shape [examples, length]")
            return x.astype(np.int64)
        if self.channels != "first" and x.ndim != (4 if self.channels == "last" else 3):
            raise DataError(f"{part.source}: inputs of the shape {x.shape} have no channels: check --data.channels")
        x = np.moveaxis(x, -1, 1) if self.channels == "last" else x[:, None] if self.channels == "none" else x
        x = x[:, None] if x.ndim == 1 else x
        return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)


def _named(arrays: dict[str, np.ndarray], name: str, suffix: str, path: Path) -> np.ndarray:
    for candidate in (name + suffix, name):
        if candidate in arrays:
            return arrays[candidate]
    raise DataError(
        f"{path}: no array {name!r} nor {name + suffix!r}, it has {', '.join(arrays)}: pass --data.inputs and "
        "--data.targets"
    )


def _classes(parts: list[Part]) -> tuple[list[np.ndarray], np.ndarray]:
    """The class of every example, and the labels of the classes."""
    labels = []
    for part in parts:
        y = part.targets[:, 0] if part.targets.ndim == 2 and part.targets.shape[1] == 1 else part.targets
        if y.ndim != 1:
            raise DataError(
                f"{part.source}: targets of the shape {y.shape} are no classes: one number for each example, or floats "
                "to regress on"
            )
        labels.append(y)
    classes = np.unique(labels[0])
    if len(classes) < 2:
        raise DataError(f"{parts[0].source}: every example has the same target: check --data.targets")
    for part, y in zip(parts, labels, strict=True):
        unknown = np.setdiff1d(y, classes)
        if len(unknown):
            raise DataError(f"{part.source}: the target {unknown[0]!s} is in no training example: fix it")
    return [np.searchsorted(classes, y).astype(np.int64) for y in labels], classes


def _values(parts: list[Part], language: bool) -> list[np.ndarray]:
    """Targets that are no classes: a token for each token, or numbers [count]."""
    for part in parts:
        y = part.targets
        if y.dtype.kind not in ("iu" if language else "f") or (language and y.min(initial=0) < 0):
            raise DataError(f"{part.source}: targets of dtype {y.dtype} cannot be predicted: pass numbers or text")
    if language:
        return [part.targets.astype(np.int64) for part in parts]
    return [
        part.targets.reshape(len(part.targets), math.prod(part.targets.shape[1:])).astype(np.float32) for part in parts
    ]
