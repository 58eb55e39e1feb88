"""The loss along random directions, made comparable between models by filter normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..core.errors import UserError
from ..core.extras import require
from .surface import Surface


@dataclass
class Profile:
    """Losses (directions, points) at the distances (points); a distance of 1 is the length of the weights."""

    distances: np.ndarray
    losses: np.ndarray

    def rise(self) -> tuple[float, float]:
        """How much higher the loss is at the ends than in the middle: mean over directions and its standard error."""
        ends = 0.5 * (self.losses[:, 0] + self.losses[:, -1]) - self.losses[:, len(self.distances) // 2]
        error = ends.std(ddof=1) / len(ends) ** 0.5 if len(ends) > 1 else np.inf
        return float(ends.mean()), float(error)


def filter_normalised(surface: Surface, seed: int) -> list[torch.Tensor]:
    """A random direction whose filters (rows of a weight) are as long as the model's; zero for biases and BatchNorm.

    A ReLU network computes the same when one layer is multiplied by 10 and the next divided by 10, yet looks ten times
    flatter along directions of a fixed length. A filter-normalised direction scales with the layers.
    Reference: Li et al., Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = []
    for p in surface.parameters:
        if p.ndim < 2:
            directions.append(torch.zeros_like(p))
            continue
        drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64).flatten(1)
        length = p.detach().double().cpu().flatten(1).norm(dim=1, keepdim=True)
        directions.append((drawn * length / drawn.norm(dim=1, keepdim=True)).view(p.shape).to(p))
    return directions


def profile(surface: Surface, *, directions: int = 5, points: int = 11, radius: float = 0.5, seed: int = 0) -> Profile:
    """The loss from -radius to radius along random directions."""
    if points < 3 or points % 2 == 0:
        raise UserError(f"points = {points}: use an odd number of at least 3, so that the model itself is one of them")
    distances = np.linspace(-radius, radius, points)
    losses = np.empty((directions, points))
    for row in range(directions):
        along = filter_normalised(surface, seed + row)
        for column, distance in enumerate(distances):
            with surface.moved(along, float(distance)):
                losses[row, column] = surface.loss()
    return Profile(distances, losses)


def draw(profiles: dict[str, Profile], path: str | Path) -> None:
    """Mean and range over directions of each profile, as a picture; its format follows from the file's name."""
    backend = require("matplotlib.backends.backend_agg", "plot", "drawing")
    figure = require("matplotlib.figure", "plot", "drawing").Figure(figsize=(6, 4), layout="constrained")
    backend.FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, curve in profiles.items():
        (line,) = axes.plot(curve.distances, curve.losses.mean(0), label=name)
        low, high = curve.losses.min(0), curve.losses.max(0)
        axes.fill_between(curve.distances, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="distance along a random direction, in units of the length of the weights", ylabel="loss")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
