"""Wrappers that make workers communicate on their own: a loop with one of them is not the sync that was chosen."""

from __future__ import annotations

import gc
import sys

import torch
from torch import nn

from ..core.errors import UserError

_GRADIENTS = "averages the gradients of all workers at every backward pass, whatever the sync"
_SHARDS = "keeps a part of every parameter on each worker, and a sync needs all of it"


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model that is wrapped in DDP or FSDP, or that a DDP wrapper elsewhere holds."""
    if not torch.distributed.is_available():
        return
    for name, module in model.named_modules():
        why = _why(module)
        if why is not None:
            where = f"the module {name!r} of the model" if name else "the model"
            raise UserError(
                f"{where} is wrapped in {_kind(module)}, which {why}: attach the plain model and call that one in the "
                "loop; sync=eq.sync.AllReduce() is what DDP does"
            )
    if torch.distributed.is_initialized() and _is_held(model):
        raise UserError(
            f"a DistributedDataParallel wrapper holds this model, which {_GRADIENTS}: remove the wrapper; "
            "sync=eq.sync.AllReduce() is what it does"
        )


def _why(module: nn.Module) -> str | None:
    """What a wrapper does that a sync cannot work with."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return _GRADIENTS
    # Looked up by name: a model that is sharded has imported them, and not every version of torch has both.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = tuple(getattr(fsdp, name) for name in ("FSDPModule", "FullyShardedDataParallel") if hasattr(fsdp, name))
    return _SHARDS if isinstance(module, sharded) else None


def _kind(module: nn.Module) -> str:
    name = type(module).__name__
    return name if name in ("DistributedDataParallel", "FullyShardedDataParallel") else "FSDP (fully_shard)"


def _is_held(model: nn.Module) -> bool:
    """Is there a DDP wrapper of this model?"""
    if not any(_holds(thing, model) for thing in gc.get_objects()):
        return False
    gc.collect()  # one that was dropped stays until it is collected
    return any(_holds(thing, model) for thing in gc.get_objects())


def _holds(thing: object, model: nn.Module) -> bool:
    """Is it a DDP wrapper of this very model? `type` and not `isinstance`, which would wake lazy objects."""
    if not issubclass(type(thing), nn.parallel.DistributedDataParallel):
        return False
    return any(module is model for module in thing.modules())  # type: ignore[attr-defined]
