"""Pictures of partitions: classes per worker, features per worker, comparison of several partitions."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from .figures import BLUE, LIGHT, ORANGE, Scheme, available

_POINTS = 2000  # per scatter plot


def class_bars(reports: dict[str, dict[str, Any]], scheme: Scheme = LIGHT) -> bytes | None:
    """One stacked bar per worker: examples of each class; one panel per partition."""
    columns = min(2, len(reports))
    figure = _figure(9.2, 2.7 * -(-len(reports) // columns))
    if figure is None:
        return None
    panels = figure.subplots(-(-len(reports) // columns), columns, squeeze=False, sharey=True).reshape(-1)
    for axes, (name, report) in zip(panels, reports.items(), strict=False):
        counts = _grouped(np.asarray(report["counts"]))
        bottom = np.zeros(counts.shape[1])
        for label, row in enumerate(counts):
            axes.bar(range(len(row)), row, bottom=bottom, color=_colour(label), width=0.8)
            bottom += row
        axes.plot(range(len(bottom)), report["wanted"], "_", color=scheme.ink, markersize=14, markeredgewidth=1.5)
        axes.set(title=name, xlabel="worker", ylabel="examples by class")
        axes.set_xticks(range(len(bottom)))
    for axes in panels[len(reports) :]:
        axes.set_visible(False)
    return _png(figure, panels[: len(reports)], scheme)


def scatter(features: np.ndarray, groups: np.ndarray, blocks: list[np.ndarray], scheme: Scheme = LIGHT) -> bytes | None:
    """First two principal components: all examples in grey, those of each worker coloured by class."""
    shown = min(8, len(blocks))
    columns = min(4, shown)
    figure = _figure(2.4 * columns, 2.4 * -(-shown // columns))
    if figure is None:
        return None
    points = principal(features)
    panels = figure.subplots(-(-shown // columns), columns, squeeze=False, sharex=True, sharey=True).reshape(-1)
    every = _sample(np.arange(len(points)))
    for worker, axes in enumerate(panels):
        if worker >= shown:
            axes.set_visible(False)
            continue
        own = _sample(blocks[worker])
        axes.scatter(*points[every].T, s=3, color=scheme.faint, linewidths=0, rasterized=True)
        axes.scatter(*points[own].T, s=5, c=[_colour(g) for g in groups[own]], linewidths=0, rasterized=True)
        axes.set(title=f"worker {worker}: {len(blocks[worker]):,}", xticks=[], yticks=[])
    return _png(figure, panels[:shown], scheme)


def distance_bars(reports: dict[str, dict[str, Any]], scheme: Scheme = LIGHT) -> bytes | None:
    """Squared MMD of the blocks relative to random ones (1): bars show the mean, dots the workers."""
    figure = _figure(9.2, 0.8 + 0.4 * len(reports))
    if figure is None:
        return None
    axes = figure.subplots()
    for place, report in enumerate(reports.values()):
        ratios = [b / r for b, r in zip(report["mmd2"]["block"], report["mmd2"]["random"], strict=True) if b and r]
        if ratios:
            axes.barh(place, sum(ratios) / len(ratios), color=BLUE, height=0.6)
            axes.plot(ratios, [place] * len(ratios), "o", color=ORANGE, markersize=4)
    axes.axvline(1.0, color=scheme.ink, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(reports)), list(reports))
    axes.invert_yaxis()
    axes.set_xlabel("squared MMD relative to a random block")
    return _png(figure, [axes], scheme)


def principal(features: np.ndarray) -> np.ndarray:
    """Coordinates along the two directions of largest variance, estimated on a sample."""
    x = features.astype(np.float64)
    sample = x[_sample(np.arange(len(x)))]
    centre = sample.mean(0)
    directions = np.linalg.svd(sample - centre, full_matrices=False)[2][:2]
    points = (x - centre) @ directions.T
    return points if points.shape[1] == 2 else np.column_stack([points, np.zeros(len(points))])


def _sample(indices: np.ndarray) -> np.ndarray:
    if len(indices) <= _POINTS:
        return indices
    return indices[np.linspace(0, len(indices) - 1, _POINTS).astype(np.int64)]


def _grouped(counts: np.ndarray, most: int = 20) -> np.ndarray:
    """Merge the classes after the first `most - 1`: more colours cannot be told apart."""
    return counts if len(counts) <= most else np.vstack([counts[: most - 1], counts[most - 1 :].sum(0)])


def _colour(label: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20"](int(label) % 20)


def _figure(width: float, height: float) -> Any:
    if not available():
        return None
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Any, panels: Any, scheme: Scheme) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[:].set_color(scheme.ink)
        axes.set_facecolor(scheme.paper)
        axes.title.set(fontsize=9, color=scheme.ink)
        axes.tick_params(colors=scheme.ink, labelsize=8)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(scheme.ink)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor=scheme.paper)
    return buffer.getvalue()
