"""The report on a partition: sizes, class balance, distances compared with random splits, time saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .blocks import members_of, stratified
from .capacity import checked_speeds
from .distance import distances


def audit(
    features: np.ndarray,
    groups: np.ndarray,
    blocks: list[np.ndarray],
    speeds: Sequence[float] | None = None,
    *,
    values: np.ndarray | None = None,
    notes: Sequence[str] = (),
    splits: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """All numbers that the page shows. Distances are means over classes; `random` is also a mean over random splits."""
    n, workers = len(groups), len(blocks)
    rates = checked_speeds(speeds, workers)
    owner = np.empty(n, dtype=np.int32)
    for worker, block in enumerate(blocks):
        owner[block] = worker
    rng = np.random.default_rng([seed, 31])
    owners = [owner, *(stratified(groups, rates, rng)[0] for _ in range(splits))]
    members = members_of(groups)
    by_class = [distances(features[part], [o[part] for o in owners], workers, seed) for part in members]
    counts = np.stack([np.bincount(owner[part], minlength=workers) for part in members])
    sizes, class_sizes = counts.sum(0), counts.sum(1)
    shares = rates / rates.sum()
    quota = class_sizes[:, None] * shares
    with np.errstate(invalid="ignore", divide="ignore"):
        profile = counts / sizes - (class_sizes / n)[:, None]
    report: dict[str, Any] = {
        "examples": n,
        "workers": workers,
        "classes": len(members),
        "speeds": rates.tolist(),
        "sizes": sizes.tolist(),
        "wanted": (n * shares).tolist(),
        "counts": counts.tolist(),
        "class_deviation": np.abs(counts - quota).max(0).tolist(),
        "class_distance": _json_list(0.5 * np.abs(profile).sum(0)),
        "splits": splits,
        **epoch_times(sizes, rates),
        "notes": list(notes),
    }
    for name in ("mmd2", "means", "spread"):
        table = _nan_mean([getattr(one, name) for one in by_class])
        report[name] = {
            "block": _json_list(table[0]),
            "random": _json_list(_nan_mean(list(table[1:])) if splits else table[0] * np.nan),
        }
    if values is not None and not np.isnan(values).all():
        report["values"] = _json_list(np.nansum(values, axis=0))
    return report


def epoch_times(sizes: np.ndarray, rates: np.ndarray) -> dict[str, float | None]:
    """How much shorter an epoch of pure compute is than with equal blocks; mean(r) / min(r) for exact proportions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        even = float(np.max(sizes.sum() / len(rates) / rates))
        own = float(np.max(np.where(sizes > 0, sizes / rates, 0.0)))
    gain = even / own if np.isfinite(even) and np.isfinite(own) and own > 0 else None
    return {"epoch_gain": gain, "epoch_gain_ideal": float(rates.mean() / rates.min()) if rates.min() > 0 else None}


def summary(report: dict[str, Any]) -> dict[str, float | None]:
    """The numbers that compare partitions: the largest errors of counts, and distances relative to random splits."""
    sizes, wanted = np.asarray(report["sizes"]), np.asarray(report["wanted"])
    numbers: dict[str, float | None] = {
        "size_error": float(np.abs(sizes - wanted).max()),
        "class_error": float(max(report["class_deviation"])),
        "class_distance": _largest(report["class_distance"]),
    }
    for name in ("mmd2", "means"):
        block, random = (_array(report[name][part]) for part in ("block", "random"))
        ratio = block / random
        numbers[f"{name}_ratio"] = _number(np.nanmean(block) / np.nanmean(random))
        numbers[f"{name}_ratio_largest"] = _number(ratio[int(np.argmax(sizes))])
    numbers["epoch_gain"] = report["epoch_gain"]
    return numbers


def _nan_mean(tables: list[np.ndarray]) -> np.ndarray:
    """The mean of the numbers that are not NaN; NaN where all of them are (without numpy's warning)."""
    stack = np.stack(tables)
    known = ~np.isnan(stack)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, stack, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def _json_list(values: np.ndarray) -> list[float | None]:
    """A list with None for NaN, which JSON does not have."""
    return [float(v) if np.isfinite(v) else None for v in np.asarray(values, dtype=np.float64)]


def _array(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _largest(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if known else None


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
