"""The same small training, by two plain workers and by two islands of two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq

STEPS, BATCH, WIDTH = 6, 8, 5


class Site(NamedTuple):
    """Where a training runs: which worker it is, which part of the worker's batch is its own."""

    worker: int
    part: slice
    mesh: Any
    wrap: Callable[[nn.Module], nn.Module]


def plain_site(rank: int) -> Site:
    return Site(rank, slice(None), None, lambda model: model)


def island_site(kind: str) -> Site:
    """Of this process, in a mesh of two islands of two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "inside"))
    worker, inside = mesh.get_coordinate()
    half = BATCH // 2

    def wrap(model: nn.Module) -> nn.Module:
        if kind == "ddp":
            return DistributedDataParallel(model, process_group=mesh.get_group(1))
        fully_shard(model[0], mesh=mesh["inside"])
        return fully_shard(model, mesh=mesh["inside"])

    return Site(worker, slice(inside * half, (inside + 1) * half), mesh, wrap)


def small_model() -> nn.Module:
    """The last layer cannot be divided: one rank has an empty shard of it."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 1)).double()


def batch_of(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * worker + step)
    x = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return x, (1 + worker) * x.sum(1, keepdim=True).sin()


@contextmanager
def attached(site: Site, *, lr: float = 0.05, optimizer: Any = None, **choices: Any) -> Iterator[Any]:
    model = site.wrap(small_model())
    made = (optimizer or (lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9)))(model.parameters())
    with eq.attach(model, made, mesh=site.mesh, **choices) as together:
        yield model, made, together


def train(site: Site, model: nn.Module, optimizer: Any, together: Any, steps: range = range(STEPS)) -> None:
    for step in steps:
        x, y = batch_of(site.worker, step)
        take_step(model, optimizer, together, x[site.part], y[site.part])


def take_step(model: nn.Module, optimizer: Any, together: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    together.batch, together.loss = len(x), loss.item()
    optimizer.step()


def outcome(together: Any) -> dict[str, Any]:
    """The mean model, its consensus and health: numbers that do not depend on how a worker is divided."""
    result = together.outcome()
    return {
        "model": together.model_state("mean"),
        "consensus": result["consensus"],
        "health": {name: float(value) for name, value in result["health"].items()},
        "samples": result["samples"],
        "rounds": result["rounds"],
        "loss": together.loss,
    }


def trained(site: Site, choices: dict[str, Any]) -> dict[str, Any]:
    with attached(site, **choices) as (model, optimizer, together):
        train(site, model, optimizer, together)
        return outcome(together)


def in_islands(kind: str, function: Callable[[Site], Any]) -> list[Any]:
    """`function` on the four processes of two islands."""

    def worker(comm: Any) -> Any:
        torch.set_num_threads(1)
        assert dist.is_initialized()
        return function(island_site(kind))

    return eq.spawn(worker, 4)


def by_plain_workers(function: Callable[[Site], Any]) -> list[Any]:
    return eq.spawn(lambda comm: function(plain_site(comm.rank)), 2, virtual=True)
