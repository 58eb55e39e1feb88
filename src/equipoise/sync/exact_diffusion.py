"""What D^2 and EDM share: gossip with a bias correction, and graphs on which it converges."""

from __future__ import annotations

import torch

from ..core.errors import UserError
from ..topology.base import Topology
from .gossip import Gossip
from .mixing import Mixing, made_lazy, require_static


def convergent_graph(graph: Topology, method: Gossip, least: float, *, never: bool) -> Topology:
    """This graph if its W has no eigenvalue below `least` (about -1/3), else the one with (I + W) / 2.

    With `never`, a UserError instead of the second.
    """
    reason = why_divergent(graph, method, least, never=never)
    if not reason:
        require_static(graph, type(method).__name__)
        return graph
    lazy = made_lazy(method.topology, reason, method.context)
    require_static(lazy.on(graph.size), type(method).__name__)
    return lazy


def why_divergent(graph: Topology, method: Gossip, least: float, *, never: bool) -> str:
    """Why a method may diverge on a graph; empty if it does not. With `never`, a UserError."""
    smallest, name = graph.lambda_min(), type(method).__name__
    if smallest >= least:
        return ""
    limit = "at least" if least < -1.0 / 3.0 else "above"
    reason = (
        f"{name} needs eigenvalues {limit} -1/3, {graph!r} over {graph.size} workers has the eigenvalue {smallest:.3f}"
    )
    if never:
        raise UserError(f"{reason} and may diverge: give the topology lazy=True, or pass lazy='auto'")
    return reason


WIRES = "dense", "its correction repeats in every round what a message left out, which then grows"


def mix_corrected(mixing: Mixing, x: torch.Tensor, correction: torch.Tensor, scratch: torch.Tensor) -> None:
    """c_i <- c_i + sum_j W_ij (phi_j - phi_i) with phi = x + c;  x_i <- x_i + c_i.

    The same as x' = W (x + c), c' = x' - x. In that form the rounding of x' would enter c at every step: it never
    leaves the mean of c, which must be zero, and moves the point where the method rests.
    """
    mixing.begin(torch.add(x, correction, out=scratch))
    x.add_(mixing.end_displacement(scratch, correction))
