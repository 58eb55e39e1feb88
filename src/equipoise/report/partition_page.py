"""A static page about one partition, or a comparison of several."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from ..partition.audit import summary
from ..partition.study import Study
from .figures import DARK, LIGHT, Scheme
from .html import document, table
from .partition_figures import class_bars, distance_bars, scatter

LABELS = {
    "size_error": "largest error of a block size",
    "class_error": "largest error of a class count",
    "class_distance": "largest distance from the overall class distribution",
    "mmd2_ratio": "squared MMD / random",
    "mmd2_ratio_largest": "the same, largest block",
    "means_ratio": "distance of means / random",
    "means_ratio_largest": "the same, largest block",
    "epoch_gain": "epoch speed-up",
}


def write_partition_page(path: Path, studies: list[Study], features: np.ndarray, groups: np.ndarray) -> None:
    """All details for one partition; a table and pictures for the comparison of several."""
    parts = _single(studies[0], features, groups) if len(studies) == 1 else _several(studies)
    text = document(", ".join(s.name for s in studies), parts)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from None


def worker_rows(report: dict[str, Any]) -> list[list[str]]:
    """A heading, then one row per worker: sizes, classes, distances from the data set next to random partitions."""
    head = [
        "worker",
        "speed",
        "examples",
        "target",
        "class error",
        "MMD^2 x 1000",
        "random",
        "distance of means",
        "random",
    ]
    values = report.get("values")
    rows = [head + (["value f"] if values else [])]
    for j in range(report["workers"]):
        row = [
            str(j),
            f"{report['speeds'][j]:g}",
            f"{report['sizes'][j]:,}",
            f"{report['wanted'][j]:,.1f}",
            f"{report['class_deviation'][j]:.2f}",
            _number(report["mmd2"]["block"][j], 1e3),
            _number(report["mmd2"]["random"][j], 1e3),
            _number(report["means"]["block"][j]),
            _number(report["means"]["random"][j]),
        ]
        rows.append(row + ([_number(values[j])] if values else []))
    return rows


def compare_rows(studies: list[Study]) -> list[list[str]]:
    """One column per partition: the labels are too long for a heading row."""
    names = [key for key in LABELS if any(summary(s.report)[key] is not None for s in studies)]
    rows = [["partition", *(LABELS[name] for name in names), "seconds"]]
    for one in studies:
        numbers = summary(one.report)
        rows.append([one.name, *(_number(numbers[name]) for name in names), f"{one.seconds:.2f}"])
    return [list(column) for column in zip(*rows, strict=True)]


def facts(one: Study) -> list[tuple[str, str]]:
    """Names and values that describe a partition."""
    report, numbers = one.report, summary(one.report)
    rows = [
        ("method", ", ".join(f"{v}" if k == "name" else f"{k} {v}" for k, v in one.method.items())),
        ("data", f"{report['examples']:,} examples in {report['classes']} classes"),
        ("seconds", f"{one.seconds:.2f}"),
    ]
    for name in ("size_error", "class_error", "class_distance", "mmd2_ratio", "means_ratio"):
        if numbers[name] is not None:
            rows.append((LABELS[name], _number(numbers[name])))
    if report["epoch_gain"] is not None:
        ideal = report["epoch_gain_ideal"]
        text = f"{report['epoch_gain']:.2f} times shorter than with equal blocks (ideal {ideal:.2f})"
        rows.append(("epoch time", text))
    return rows + [("note", note) for note in report["notes"]]


def _single(one: Study, features: np.ndarray, groups: np.ndarray) -> list[str]:
    parts = [f"<h1>Partition: {html.escape(one.name)}</h1>", table(facts(one), heads=True), "<h2>Workers</h2>"]
    parts.append(table(worker_rows(one.report), first=True))
    parts.append(
        f"<p>MMD and distance of means compare a block's examples of a class with all examples of that class, averaged "
        f"over classes. Random: mean of {one.report['splits']} stratified random partitions of the same sizes.</p>"
    )
    bars = partial(class_bars, {one.name: one.report})
    parts += _image(bars, "Classes", "Examples per worker by class; dashes: target sizes")
    caption = "First two principal components: all examples in grey, those of the worker coloured by class"
    return parts + _image(partial(scatter, features, groups, one.blocks), "Features", caption)


def _several(studies: list[Study]) -> list[str]:
    reports = {one.name: one.report for one in studies}
    parts = ["<h1>Comparison of partitions</h1>", table(compare_rows(studies), heads=True, first=True)]
    caption = "Squared MMD relative to stratified random blocks; bar: mean, dots: workers"
    parts += _image(partial(distance_bars, reports), "Distance from the data set", caption)
    return parts + _image(partial(class_bars, reports), "Classes", "Examples per worker by class; dashes: target sizes")


def _image(draw: Callable[[Scheme], bytes | None], title: str, caption: str) -> list[str]:
    """Drawn twice: in the colours of the page, and in those of its dark mode."""
    light, dark = draw(LIGHT), draw(DARK)
    if light is None or dark is None:
        return []
    one, other = (f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in (light, dark))
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{other}">'
    picture = f'<picture>{source}<img alt="{caption}" src="{one}"></picture>'
    return [f"<h2>{title}</h2>", picture, f"<p>{caption}.</p>"]


def _number(value: float | None, times: float = 1.0) -> str:
    return "-" if value is None else f"{value * times:.4g}"
