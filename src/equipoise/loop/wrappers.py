"""Wrappers of frameworks with which a loop would not be what was chosen: another sync, or a part of the data only."""

from __future__ import annotations

import gc
import inspect
import sys
from typing import Any

import torch
from torch import nn

from ..core.errors import UserError

_GRADIENTS = "averages the gradients of all workers at every backward pass, whatever the sync"
_SHARDS = "keeps a part of every parameter on each worker, and a sync needs all of it"


def ddp_wrapper_of(model: nn.Module) -> Any:
    """The DDP wrapper that this model is, or that holds it; None where there is none."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model
    return _holder(model) if torch.distributed.is_initialized() else None


def is_older_fsdp(model: nn.Module) -> bool:
    """Is the model, or a part of it, wrapped in the first FSDP?"""
    return any(isinstance(module, _sharding_kinds("FullyShardedDataParallel")) for module in model.modules())


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
                "loop; sync=eq.sync.AllReduce() is what DDP does. Several processes that are one worker: pass mesh="
            )
    if torch.distributed.is_initialized() and _holder(model) is not None:
        raise UserError(
            f"a DistributedDataParallel wrapper holds this model, which {_GRADIENTS}: remove the wrapper; "
            "sync=eq.sync.AllReduce() is what it does. Several processes that are one worker: pass mesh="
        )


def refuse_wrapped_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that calls another one, and so has no steps of its own to which hooks could be put."""
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise UserError(
            f"the optimizer is wrapped in {type(optimizer).__name__}, which has no step hooks: pass the one inside it "
            "(optimizer.optimizer), or use equipoise.integrations.accelerate.attach"
        )


def refuse_second_division() -> None:
    """Refuse to be iterated over by Accelerate's sampler, which leaves to each worker a part of the batches it gets."""
    frame = inspect.currentframe()
    while frame is not None:
        owner: Any = frame.f_locals.get("self")
        if type(owner).__name__ == "BatchSamplerShard" and owner.num_processes > 1:
            raise UserError(
                "accelerator.prepare(loader) divides the batches of eq.Sampler among the workers, and they are this "
                "worker's own already: use prepare of equipoise.integrations.accelerate, or leave the loader out"
            )
        frame = frame.f_back


def _why(module: nn.Module) -> str | None:
    """What a wrapper does that a sync cannot work with."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return _GRADIENTS
    return _SHARDS if isinstance(module, _sharding_kinds("FSDPModule", "FullyShardedDataParallel")) else None


def _sharding_kinds(*names: str) -> tuple[type, ...]:
    """Looked up by name: a model that is sharded has imported them, and not every version of torch has both."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))


def _kind(module: nn.Module) -> str:
    name = type(module).__name__
    return name if name in ("DistributedDataParallel", "FullyShardedDataParallel") else "FSDP (fully_shard)"


def _holder(model: nn.Module) -> Any:
    """The DDP wrapper of this model, if there is one."""
    # A large program has half a million objects and a few thousand types.
    if not any(issubclass(kind, nn.parallel.DistributedDataParallel) for kind in set(map(type, gc.get_objects()))):
        return None
    if not any(_holds(thing, model) for thing in gc.get_objects()):
        return None
    gc.collect()  # one that was dropped stays until it is collected
    return next((thing for thing in gc.get_objects() if _holds(thing, model)), None)


def _holds(thing: object, model: nn.Module) -> bool:
    """Is it a DDP wrapper of this very model? `type` and not `isinstance`, which would wake lazy objects."""
    if not issubclass(type(thing), nn.parallel.DistributedDataParallel):
        return False
    return any(module is model for module in thing.modules())  # type: ignore[attr-defined]
