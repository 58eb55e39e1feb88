"""All measures of flatness of one model in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .curvature import largest_eigenvalue, trace
from .profile import Profile, profile
from .surface import Estimate, Surface, gradient_norm


@dataclass
class Flatness:
    """The measures of one model, each with its error."""

    examples: int
    loss: float
    gradient_norm: Estimate  # error: from the choice of examples (jackknife)
    largest_eigenvalue: Estimate  # error: the residual; an eigenvalue is within it
    trace: Estimate  # error: standard error over random probes
    profile: Profile  # loss along filter-normalised directions

    def rows(self) -> list[tuple[str, str]]:
        """Names and values for a table."""
        return [
            ("examples", f"{self.examples:,}"),
            ("loss", f"{self.loss:.5g}"),
            ("gradient norm", str(self.gradient_norm)),
            ("largest eigenvalue", str(self.largest_eigenvalue)),
            ("trace", str(self.trace)),
            (f"rise within {self.profile.distances[-1]:g}", str(Estimate(*self.profile.rise()))),
        ]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        table: dict[str, Any] = {"examples": self.examples, "loss": self.loss}
        for name in ("gradient_norm", "largest_eigenvalue", "trace"):
            table[name] = getattr(self, name)._asdict()
        table["profile"] = {"distances": self.profile.distances.tolist(), "losses": self.profile.losses.tolist()}
        return table


def measure(
    model: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor] | None,
    data: Any,
    *,
    examples: int | None = 1024,
    probes: int = 30,
    most: int = 40,
    directions: int = 5,
    points: int = 11,
    radius: float = 0.5,
    seed: int = 0,
) -> Flatness:
    """The flatness of `loss(model(inputs), targets)` around the model, over `examples` random examples of `data`.

    None takes all examples. In eval mode: a model whose BatchNorm statistics are stale (a mean of several models) needs
    them recomputed first.
    """
    surface = Surface(model, loss, data, examples=examples, seed=seed)
    return Flatness(
        len(surface.indices),
        surface.loss(),
        gradient_norm(surface),
        largest_eigenvalue(surface, most=most, seed=seed),
        trace(surface, probes=probes, seed=seed),
        profile(surface, directions=directions, points=points, radius=radius, seed=seed),
    )
