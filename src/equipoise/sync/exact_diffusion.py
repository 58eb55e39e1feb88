"""What D^2 and EDM share: gossip that remembers what mixing did to the model, on graphs where that converges."""

from __future__ import annotations

import torch

from ..core.errors import UserError
from ..topology.base import Topology
from .gossip import Gossip
from .mixing import Mixing, made_lazy


def convergent_graph(graph: Topology, method: Gossip, least: float, *, never: bool) -> Topology:
    """A graph whose W has no eigenvalue below `least`, about -1/3: this one, or (I + W) / 2, unless that is to happen `never`."""
    smallest = graph.lambda_min()
    if smallest >= least:
        return graph
    name = type(method).__name__
    reason = f"{name}: {graph!r} over {graph.size} workers has the eigenvalue {smallest:.3f}, not safely above -1/3"
    if never:
        raise UserError(f"{reason}, and may diverge: give the topology lazy=True, or pass lazy='auto'")
    return made_lazy(method.topology, reason, method.context)


def mix_corrected(mixing: Mixing, x: torch.Tensor, correction: torch.Tensor, scratch: torch.Tensor) -> None:
    """x_i <- sum_j W_ij (x_j + c_j);  c_i <- x_i - (x_i before): the next round takes back what this one did."""
    mixed = mixing.mix(torch.add(x, correction, out=scratch))
    torch.sub(mixed, x, out=correction)
    x.copy_(mixed)
