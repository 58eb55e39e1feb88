"""Pictures of a bound topology: SVG without dependencies, PNG with matplotlib. One panel per round of a period."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..core.errors import UserError
from ..core.extras import require
from .base import Topology
from .star import Star
from .torus import Torus

PANELS = 12  # more rounds than this are not drawn
_SIDE, _TITLE = 320, 44
_INK, _NODE, _TEXT = "#5b6b7f", "#2f6db5", "#1d2733"


class DrawnEdge(NamedTuple):
    """A line or an arrow between two workers."""

    start: int
    end: int
    weight: float
    arrow: bool
    bend: float  # of the curve, as a fraction of its length; 0 is straight


def draw(topology: Topology, path: str | Path) -> None:
    """Write a picture; the suffix of the file name selects the format."""
    path = Path(path)
    kinds = {".svg": _write_svg, ".png": _write_png}
    if path.suffix.lower() not in kinds:
        raise UserError(f"{path}: a picture of a topology is .svg or .png: choose such a name")
    try:
        kinds[path.suffix.lower()](topology, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from None


def svg(topology: Topology, *, inline: bool = False) -> str:
    """The picture as a string of SVG; `inline` for an HTML page, whose text and background colours it takes."""
    rounds = panels(topology)
    across = min(4, len(rounds))
    width, height = across * _SIDE, _TITLE + math.ceil(len(rounds) / across) * _SIDE
    tip = f'<path d="M0 0L6 3L0 6z" fill="{_INK}"/>'
    namespace, text = ("", "currentColor") if inline else ('xmlns="http://www.w3.org/2000/svg" ', _TEXT)
    parts = [
        f'<svg {namespace}viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" '
        f'fill="{text}">',
        f'<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
        f'markerUnits="userSpaceOnUse" orient="auto">{tip}</marker></defs>',
        "" if inline else f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="14" y="27" font-size="14">{escape(title(topology))}</text>',
    ]
    for i, round in enumerate(rounds):
        left, top = i % across * _SIDE, _TITLE + i // across * _SIDE
        parts.append(f'<g transform="translate({left} {top})">')
        if len(rounds) > 1:
            parts.append(f'<text x="14" y="12" font-size="11">round {round}</text>')
        parts += [*_panel(topology, round), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def title(topology: Topology) -> str:
    more = topology.cycle == 0 or topology.cycle > PANELS
    return f"{type(topology).__name__}, {topology.size} workers" + (f", first {PANELS} rounds" if more else "")


def panels(topology: Topology) -> range:
    return range(min(topology.cycle or PANELS, PANELS))


def places(topology: Topology) -> list[tuple[float, float]]:
    """The position of each worker in the unit square: on a circle, a torus on its grid, a hub in the middle."""
    size = topology.size
    if isinstance(topology, Torus):
        rows, columns = topology.grid(size)
        step = 0.7 / max(1, rows - 1, columns - 1)
        left, top = 0.5 - step * (columns - 1) / 2, 0.5 - step * (rows - 1) / 2
        return [(left + step * (rank % columns), top + step * (rank // columns)) for rank in range(size)]
    rim = [rank for rank in range(size) if not (isinstance(topology, Star) and rank == topology.hub)]
    spots = [(0.5, 0.5)] * size
    for i, rank in enumerate(rim if size > 1 else []):
        turn = 2 * math.pi * i / len(rim)
        spots[rank] = (0.5 + 0.42 * math.sin(turn), 0.5 - 0.42 * math.cos(turn))
    return spots


def links(topology: Topology, round: int) -> list[DrawnEdge]:
    """Every link once; an arrow where the two directions differ."""
    weights = {(peer, rank): w for rank in range(topology.size) for peer, w in topology.neighbours(round, rank)}
    spots, drawn = places(topology), []
    for (a, b), weight in weights.items():
        both = abs(weights.get((b, a), -1.0) - weight) < 1e-12
        if both and a > b:
            continue
        # On a grid, a link around the border would run through the workers in between: it is bent.
        far = isinstance(topology, Torus) and math.dist(spots[a], spots[b]) > 1.5 * _shortest(spots)
        drawn.append(DrawnEdge(a, b, weight, not both, 0.15 if far else 0.0))
    return drawn


def _shortest(spots: list[tuple[float, float]]) -> float:
    return min((math.dist(spots[0], spot) for spot in spots[1:]), default=1.0)


def _radius(size: int) -> float:
    return max(0.008, min(0.04, 0.9 / max(size, 1)))


def _width(weight: float) -> float:
    return 0.5 + 2.5 * min(1.0, weight)


def _panel(topology: Topology, round: int) -> list[str]:
    spots = [(x * _SIDE, y * _SIDE) for x, y in places(topology)]
    radius, parts = _radius(topology.size) * _SIDE, []
    for link in links(topology, round):
        (x0, y0), (x1, y1) = spots[link.start], spots[link.end]
        dx, dy = x1 - x0, y1 - y0
        length = math.hypot(dx, dy)
        back = (radius + 1.0) / length if link.arrow else 0.0  # the tip must not hide under the node
        bend = (
            f"Q{(x0 + x1) / 2 + 2 * link.bend * dy:.1f} {(y0 + y1) / 2 - 2 * link.bend * dx:.1f} " if link.bend else "L"
        )
        tip = ' marker-end="url(#tip)"' if link.arrow else ""
        parts.append(
            f'<path d="M{x0:.1f} {y0:.1f}{bend}{x1 - dx * back:.1f} {y1 - dy * back:.1f}" fill="none" stroke="{_INK}" '
            f'stroke-opacity="0.7" stroke-width="{_width(link.weight):.2f}"{tip}/>'
        )
    for rank, (x, y) in enumerate(spots):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_NODE}"><title>worker {rank}</title></circle>'
        )
        if topology.size <= 40:
            parts.append(
                f'<text x="{x:.1f}" y="{y + 0.3 * radius:.1f}" font-size="{radius:.1f}" text-anchor="middle" '
                f'fill="#ffffff">{rank}</text>'
            )
    return parts


def _write_svg(topology: Topology, path: Path) -> None:
    path.write_text(svg(topology), encoding="utf-8")


def _write_png(topology: Topology, path: Path) -> None:
    purpose = "a PNG (unlike an .svg)"
    backend = require("matplotlib.backends.backend_agg", "plot", purpose)
    figures = require("matplotlib.figure", "plot", purpose)
    patches = require("matplotlib.patches", "plot", purpose)
    rounds = panels(topology)
    across = min(4, len(rounds))
    figure = figures.Figure(
        figsize=(3.2 * across, 0.4 + 3.2 * math.ceil(len(rounds) / across)), dpi=150, layout="tight"
    )
    backend.FigureCanvasAgg(figure)
    figure.suptitle(title(topology), fontsize=10)
    spots, radius = places(topology), _radius(topology.size)
    for i, round in enumerate(rounds):
        axes = figure.add_subplot(math.ceil(len(rounds) / across), across, i + 1, aspect="equal")
        axes.set(xlim=(0, 1), ylim=(1, 0), title=f"round {round}" if len(rounds) > 1 else "")
        axes.title.set_fontsize(8)
        axes.axis("off")
        for link in links(topology, round):
            arrow = patches.FancyArrowPatch(
                spots[link.start],
                spots[link.end],
                arrowstyle="-|>" if link.arrow else "-",
                connectionstyle=f"arc3,rad={2 * link.bend}",
                mutation_scale=7,
                shrinkA=0,
                shrinkB=200 * radius,
            )
            arrow.set(color=_INK, alpha=0.7, linewidth=0.7 * _width(link.weight))
            axes.add_patch(arrow)
        for rank, spot in enumerate(spots):
            axes.add_patch(patches.Circle(spot, radius, color=_NODE, zorder=3))
            if topology.size <= 40:
                axes.text(*spot, str(rank), color="#ffffff", fontsize=140 * radius, ha="center", va="center", zorder=4)
    figure.savefig(path)
