"""The strata that are balanced over workers: classes, or what replaces them where the data has none."""

from __future__ import annotations

import numpy as np

from ..core.errors import DataError
from ..data.view import DatasetView


def strata(view: DatasetView, bins: int, workers: int) -> tuple[np.ndarray, list[str]]:
    """The stratum of every example, and a note where that is not simply its class.

    Class labels are used as they are; real-valued targets are binned by quantiles (several targets: of their first
    principal component); several labels per example are used by combination, and combinations with fewer examples than
    workers are merged; without targets all examples are one stratum.
    """
    from ..data.features import targets

    if view.labels is not None:
        return np.unique(view.labels, return_inverse=True)[1].reshape(-1), []
    values = targets(view)
    if values is None or len(values) != view.examples:
        return np.zeros(view.examples, dtype=np.int64), ["the data has no labels: all examples are one class"]
    values = values.reshape(len(values), -1)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))[0]
        raise DataError(f"the target of example {bad} is NaN or infinite: fix or remove that example")
    if values.shape[1] == 1 and values.dtype.kind in "iub":
        return np.unique(values[:, 0], return_inverse=True)[1].reshape(-1), []
    if values.dtype.kind in "iub" or np.isin(values, (0, 1)).all():
        return _combinations(values, workers)
    if values.shape[1] > 1:
        centred = values - values.mean(0)
        values = centred @ np.linalg.svd(centred[:10_000], full_matrices=False)[2][:1].T
    return _quantiles(values[:, 0], bins)


def _combinations(values: np.ndarray, workers: int) -> tuple[np.ndarray, list[str]]:
    groups, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)[1:]
    groups = groups.reshape(-1)
    rare = counts < workers
    note = f"several labels per example: balanced by their {len(counts)} combinations"
    if rare.sum() > 1:
        note += f", of which {int(rare.sum())} with fewer than {workers} examples are merged"
        names = np.where(rare, -1, np.arange(len(counts)))
        groups = np.unique(names[groups], return_inverse=True)[1].reshape(-1)
    return groups, [note]


def _quantiles(values: np.ndarray, bins: int) -> tuple[np.ndarray, list[str]]:
    # By rank, so that no bin is empty, and rounding of an edge never separates equal targets.
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1], method="lower"))
    groups = np.unique(np.searchsorted(edges, values, side="left"), return_inverse=True)[1].reshape(-1)
    return groups, [f"real-valued targets: balanced by {int(groups.max()) + 1} quantile bins"]
