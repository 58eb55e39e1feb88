"""What a partition compares examples by: rows of numbers, one per example.

`eq.partition.Submodular(features=...)` takes any of these: "inputs" (the examples themselves, flattened), "bag" (for
token ids: how often each word occurs), the path of a `.npy` file, an array with one row per example,
`penultimate(model)`, or your own function from a `DatasetView` to such an array, which has a name on the command line
("package.module:function"). "model" is the last layer of the model that is trained, after its first epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import DataError, UserError
from ..core.user_function import imported, is_function
from .view import MODEL, DatasetView

_WORDS = 256  # columns of "bag"; words whose ids are equal modulo this share a column


def feature_array(view: DatasetView, features: Any) -> np.ndarray:
    """The features of a data set, checked: two dimensions, one row per example, every number finite."""
    if isinstance(features, str):
        name = features
        if features == "inputs":
            array = inputs(view)
        elif features == "bag":
            array = bag(view)
        elif features == MODEL:
            raise UserError(
                "features = 'model' are those of a model in training, after its first epoch: use them with eq.train or "
                "equipoise train; here pass eq.features.penultimate(model), or a .npy file"
            )
        elif is_function(features) and not features.endswith(".npy"):
            array = _as_array(imported(features)(view))
        else:
            array = _from_file(features)
    elif isinstance(features, Given):
        name, array = "the features given", features.array
    else:
        name, array = "the features made by your function", _as_array(features(view))
    if len(array) != view.examples:
        raise UserError(f"{name}: {len(array)} rows for {view.examples} examples: give one row per example")
    rows = array.reshape(len(array), -1)
    if rows.dtype.kind not in "fiub":
        raise UserError(f"{name} are of type {rows.dtype}: give numbers")
    if rows.dtype.kind == "f" and not np.isfinite(_sum(rows)):
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise DataError(f"{name}: the row of example {bad[0]} holds NaN or infinity: fix or remove that example")
    return rows


def _sum(rows: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # of huge rows, and of infinities with both signs
        return float(rows.sum(dtype=np.float64))


def inputs(view: DatasetView) -> np.ndarray:
    """The examples themselves, flattened."""
    rows = _columns(view)[0]
    if rows.dtype in (np.int32, np.int64) and rows.ndim == 2 and rows.shape[1] > 1:
        raise UserError(
            "the inputs are token ids, whose distances mean nothing: use features='bag', "
            "eq.features.penultimate(model) or an array of your own"
        )
    return rows.reshape(len(rows), -1)


def bag(view: DatasetView) -> np.ndarray:
    """Word counts of token ids in 256 columns, each row scaled to length one."""
    tokens = _columns(view)[0]
    if tokens.dtype.kind not in "iu":
        raise UserError("features='bag' counts token ids and these inputs are not: use features='inputs'")
    tokens = tokens.reshape(len(tokens), -1).astype(np.int64) % _WORDS
    counts = np.zeros((len(tokens), _WORDS), dtype=np.float32)
    np.add.at(counts, (np.arange(len(tokens))[:, None], tokens), 1.0)
    normalised: np.ndarray = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    return normalised


def targets(view: DatasetView) -> np.ndarray | None:
    """The targets of all examples, of any kind; None where the data has none."""
    data = view.data
    for name in ("y", "targets"):
        if hasattr(data, name):
            return np.asarray(getattr(data, name))
    if isinstance(data, (tuple, list)) and len(data) > 1 and hasattr(data[-1], "__len__"):
        return np.asarray(data[-1])
    return None


def _columns(view: DatasetView) -> tuple[np.ndarray, ...]:
    from .source import Source

    if view.data is None:
        raise UserError("this view has no data to take features from: pass features=ARRAY")
    source = Source(view.data)
    if source.tensors is not None:
        return tuple(t.detach().cpu().numpy() for t in source.tensors)
    step = 1024
    parts = [source.batch(np.arange(i, min(i + step, len(source)))) for i in range(0, len(source), step)]
    first = [part[0] if isinstance(part, (tuple, list)) else part for part in parts]
    if not all(isinstance(part, torch.Tensor) for part in first):
        raise UserError("the examples of this data set do not stack into an array: pass features=ARRAY")
    return (torch.cat(first).cpu().numpy(),)


def _from_file(path: str) -> np.ndarray:
    if not path.endswith(".npy"):
        raise UserError(
            f"features = {path!r}: takes inputs, bag, model, package.module:function, or the path of a .npy file"
        )
    try:
        array: np.ndarray = np.load(Path(path).expanduser(), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"features: {path} cannot be read as a .npy array ({type(error).__name__})") from None
    return array


def _as_array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


class Given:
    """An array of features, identified by its contents: its `repr` goes into checkpoints."""

    def __init__(self, array: Any):
        self.array = _as_array(array)
        if self.array.ndim == 0:
            raise UserError("features: one row of numbers per example is needed")

    def __repr__(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self.array).tobytes()).hexdigest()[:16]
        return f"Given({' x '.join(map(str, self.array.shape))} {self.array.dtype}, sha256 {digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and np.array_equal(self.array, other.array)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Penultimate:
    """Runs the data through a model and returns the inputs of its last linear layer."""

    model: nn.Module
    batch: int = 256
    device: str = "cpu"
    _captured: list[torch.Tensor] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, view: DatasetView) -> np.ndarray:
        from .source import Source

        last = [module for module in self.model.modules() if isinstance(module, nn.Linear)]
        if not last:
            raise UserError("penultimate: the model has no linear layer: pass features=ARRAY or your own function")
        source, rows = Source(view.data), []
        training = self.model.training
        self.model.eval()
        hook = last[-1].register_forward_pre_hook(lambda _, arguments: self._captured.append(arguments[0]))
        try:
            with torch.no_grad():
                for start in range(0, len(source), self.batch):
                    part = source.batch(np.arange(start, min(start + self.batch, len(source))))
                    self._captured.clear()
                    self.model((part[0] if isinstance(part, (tuple, list)) else part).to(self.device))
                    rows.append(self._captured[-1].flatten(1).float().cpu())
        finally:
            hook.remove()
            self._captured.clear()
            self.model.train(training)
        return torch.cat(rows).numpy()


def penultimate(model: nn.Module, batch: int = 256, device: str = "cpu") -> Callable[[DatasetView], np.ndarray]:
    """Features from a trained (or even a random) network: the inputs of its last linear layer.

    The model runs once over the data, in eval mode and without gradients, and is left unchanged.
    """
    return Penultimate(model, batch, device)
