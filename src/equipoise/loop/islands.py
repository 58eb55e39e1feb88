"""A worker of `eq.attach` that is a group of processes: which ones, and whether the model is theirs.

A DeviceMesh says it: its first dimension counts the islands, the second one the ranks inside one. DDP or FSDP joins the
ranks of an island into one worker; a sync joins the islands, rank by rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ..comm.base import Comm
from ..comm.current import current_comm
from ..core.errors import UserError
from ..core.island import Island
from ..core.shards import is_shard, local, sharding_modules
from ..order.base import Order
from ..partition.base import Partition
from .drift import refuse_other_recipe
from .wrappers import ddp_wrapper_of, is_older_fsdp

if TYPE_CHECKING:
    from .attach import attach

_FIX = 'DistributedDataParallel(model, process_group=mesh.get_group(1)) or fully_shard(model, mesh=mesh["inside"])'


class Levels(NamedTuple):
    """The comms of this process in a mesh."""

    between: Comm  # this rank of every island: the workers, as methods see them
    inside: Comm | None  # the ranks of this island, where there are several
    everyone: Comm  # all processes, for the files of a run
    layout: tuple[tuple[int, ...], ...]  # the processes of each island


def levels_of(mesh: Any) -> Levels:
    """The comms of a mesh; all processes call it together."""
    dist = torch.distributed
    if not hasattr(mesh, "get_coordinate") or not dist.is_initialized():
        raise UserError(
            "mesh must be a DeviceMesh of torch.distributed: init_device_mesh('cuda', (islands, ranks), "
            "mesh_dim_names=('islands', 'inside')); virtual workers have none"
        )
    if mesh.ndim != 2:
        raise UserError(
            f"mesh has {mesh.ndim} dimension{'s' * (mesh.ndim > 1)}: two are needed, islands and the ranks inside one"
        )
    if mesh.size() != dist.get_world_size() or mesh.get_coordinate() is None:
        raise UserError(f"mesh has {mesh.size()} of {dist.get_world_size()} processes: all of them must be in it")
    layout = tuple(tuple(row) for row in mesh.mesh.tolist())
    inside = current_comm(mesh.get_group(1)) if len(layout[0]) > 1 else None
    return Levels(current_comm(mesh.get_group(0)), inside, current_comm(), layout)


def island_of(levels: Levels, model: nn.Module) -> tuple[Island, nn.Module]:
    """The island of this process, and the model without a DDP wrapper. Refuses a model that is not the island's."""
    island = next(row for row in levels.layout if torch.distributed.get_rank() in row)
    for module in sharding_modules(model):
        module.reshard()
    wrapper = ddp_wrapper_of(model)
    sharded = {name: p for name, p in model.named_parameters() if is_shard(p)}
    if is_older_fsdp(model):
        raise UserError("FullyShardedDataParallel cannot be inside an island: use fully_shard (FSDP2)")
    if wrapper is not None:
        joined = torch.distributed.get_process_group_ranks(wrapper.process_group)
        _refuse_other_ranks("DistributedDataParallel", joined, island)
        if sharded:
            raise UserError("the model is wrapped in DistributedDataParallel and sharded by FSDP: leave one out")
        held: Any = wrapper.module
        return Island(levels.inside, replicas=len(island)), held if model is wrapper else model
    if not sharded:
        if len(island) > 1:
            raise UserError(
                f"mesh has islands of {len(island)} ranks, and nothing makes one worker of them: use {_FIX}"
            )
        return Island(), model
    found = Island(levels.inside, replicas=_replicas(model, sharded, island))
    if not found.all(any(local(p).numel() for p in sharded.values())):
        raise UserError("FSDP has left a rank of the island without any part of the model: use fewer ranks, or DDP")
    return found, model


def _replicas(model: nn.Module, sharded: dict[str, Any], island: tuple[int, ...]) -> int:
    """How many ranks of an island hold the same shard."""
    found = set()
    for name, _ in model.named_parameters():
        if name not in sharded:
            raise UserError(f"parameter {name} is not sharded and others are: apply fully_shard to the whole model too")
        p = sharded[name]
        ranks = p.device_mesh.mesh.flatten().tolist()
        _refuse_other_ranks("FSDP", ranks, island)
        shards = 1
        for size, placement in zip(p.device_mesh.shape, p.placements, strict=True):
            shards *= 1 if placement.is_replicate() else size
        found.add(len(island) // shards)
    if len(found) > 1:
        raise UserError("parameters are sharded in several ways: shard all of them over the same mesh")
    [replicas] = found
    return replicas


def _refuse_other_ranks(kind: str, ranks: list[int], island: tuple[int, ...]) -> None:
    if sorted(ranks) != sorted(island):
        raise UserError(
            f"{kind} joins the ranks {sorted(ranks)}, and the island of this process is {sorted(island)}: use {_FIX}"
        )


def check_island(together: attach, order: Order | None, partition: Partition | None) -> None:
    """Refuse choices with which the ranks of an island could not act alike."""
    island, period, sampler = together.island, together.period_choice, together.sampler
    if together.group is not None:
        raise UserError("mesh says which processes are the workers: leave group out")
    if together.limits[0] is not None:
        raise UserError("islands cannot come and go: leave elastic out")
    if sampler is not None and sampler.inside is not island.inside:
        raise UserError("the sampler does not divide its batches inside islands: pass mesh= to eq.Sampler too")
    if island.size == 1:
        return
    check_data(order, partition)
    if not period.lockstep:
        raise UserError(
            f"{type(period).__name__} lets every rank of an island choose its own rounds: use a number of steps"
        )
    if together.scaler is not None and island.sharded:
        raise UserError("a GradScaler does not see overflows in the shards of other ranks: use bfloat16 with FSDP")


def refuse_other_rank(island: Island, told: dict[str, Any], share: float | None) -> None:
    """The ranks of an island are one worker: all settings and even its share are the same on all of them."""
    if island.inside is not None:
        refuse_other_recipe(island.inside, {**told, "share": share})


def check_data(order: Order | None, partition: Partition | None) -> None:
    """Refuse choices of a sampler for which a rank would have to know what it does not see."""
    if order is not None and order.watches:
        raise UserError(
            f"{type(order).__name__} learns from gradients of all examples of a batch, and a rank of an island sees a "
            "part of them: use eq.order.Reshuffle()"
        )
    if partition is not None and partition.claimed:
        raise UserError(
            f"{type(partition).__name__} lets every rank of an island claim examples of its own: use another partition"
        )


def part_of_batch(indices: list[int], inside: Comm | None) -> list[int]:
    """This rank's part of an island's batch. All parts are equally long, since DDP and FSDP take the plain mean of
    ranks: where the batch cannot be divided, its first examples are used again.
    """
    if inside is None:
        return indices
    length = -(-len(indices) // inside.size)
    return [indices[i % len(indices)] for i in range(inside.rank * length, (inside.rank + 1) * length)]


def as_number(loss: Any) -> float | None:
    """A loss that the loop has set, which may be the tensor itself."""
    if not isinstance(loss, torch.Tensor):
        return None if loss is None else float(loss)
    if loss.numel() != 1:
        raise UserError(f"together.loss has the shape {list(loss.shape)}: set one number, the mean over the batch")
    return loss.item()


def tell_island(together: attach) -> int:
    """The examples of the island's batch in this step; `together.loss` becomes a number, the mean over its ranks."""
    together.loss = as_number(together.loss)
    island, loss = together.island, together.loss
    if island.inside is None:
        return together.batch
    together.everyone.step = island.inside.step = together.clock.step + 1
    ranks, batch, losses = island.add(float(loss is not None), float(together.batch), loss or 0.0)
    if ranks not in (0, island.size):
        raise UserError("together.loss is set on some ranks of an island only: set it on all of them, or on none")
    together.loss = losses / island.size if ranks else None
    return int(batch) if together.sampler is None else together.batch
