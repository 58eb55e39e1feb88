"""Everything that decides a worker's future: what a checkpoint keeps, and how it is put back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..checkpoint.match import refuse_mismatch
from ..checkpoint.reshard import mean
from ..checkpoint.store import read_manifest, read_worker
from ..core.errors import CheckpointError
from ..core.random import rng_state, seed_worker, set_rng_state
from ..core.shards import local_tree, sharded_model_state, sharded_optimizer_state
from .contents import reading, refuse_other_contents
from .data_position import converted
from .snapshot import Done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .worker import Worker

_METHODS = ("order", "batch", "period", "sync", "wire")


class TrainedPart:
    """Of a model the parameters that are trained, and the buffers: for checkpoints where others keep the rest."""

    def __init__(self, model: nn.Module):
        self.model = model

    def state_dict(self) -> dict[str, torch.Tensor]:
        frozen = {name for name, p in self.model.named_parameters(remove_duplicate=False) if not p.requires_grad}
        return {name: tensor for name, tensor in self.model.state_dict().items() if name not in frozen}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict({**self.model.state_dict(), **state})


def trained_state(model: nn.Module | TrainedPart, optimizer: torch.optim.Optimizer, **others: Any) -> dict[str, Any]:
    """Model, optimizer, random generators, and `others` that have a `state_dict` (or are None).

    Of what FSDP has sharded, the shards of this process.
    """
    torch_rng, python_rng, numpy_rng, devices = rng_state()
    kind, keys, *rest = numpy_rng
    version, words, *gauss = python_rng
    return {
        "model": local_tree(model.state_dict()),
        "optimizer": local_tree(optimizer.state_dict()),
        **{name: None if other is None else other.state_dict() for name, other in others.items()},
        "rng": {
            "torch": torch_rng,
            # As a tensor: 625 numbers take 10 ms to write and to read one by one.
            "python": (version, torch.tensor(words), *gauss),
            "numpy": (kind, torch.from_numpy(keys.astype("int64")), *rest),
            **({"devices": devices} if devices else {}),
        },
        "classes": _classes(model=model, optimizer=optimizer, **others),
    }


def load_trained(
    state: dict[str, Any],
    model: nn.Module | TrainedPart,
    optimizer: torch.optim.Optimizer,
    *,
    rng: bool = True,
    **others: Any,
) -> None:
    """Put back what `trained_state` gave, if it is of the kind that was saved."""
    refuse_other_classes(state, model, optimizer, **others)
    options = [set(group) for group in optimizer.param_groups]
    try:
        model.load_state_dict(sharded_model_state(state["model"], model.state_dict()))  # type: ignore[arg-type]
        optimizer.load_state_dict(sharded_optimizer_state(state["optimizer"], optimizer))
        if any(not names <= set(group) for names, group in zip(options, optimizer.param_groups, strict=True)):
            raise ValueError("options of the optimizer are missing")
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint is of another model or other parameter groups: {error}") from None
    for name, other in others.items():
        if other is not None:
            other.load_state_dict(state[name])
    if rng:
        load_rng(state)


def load_rng(state: dict[str, Any]) -> None:
    kind, keys, *rest = state["rng"]["numpy"]
    version, words, *others = state["rng"]["python"]
    words = tuple(words.tolist()) if isinstance(words, torch.Tensor) else words  # numbers before version 0.3
    python_rng, numpy_rng = (version, words, *others), (kind, keys.numpy().astype(np.uint32), *rest)
    set_rng_state((state["rng"]["torch"], python_rng, numpy_rng, state["rng"].get("devices", {})))


def refuse_other_classes(
    state: dict[str, Any], model: nn.Module | TrainedPart, optimizer: torch.optim.Optimizer, **others: Any
) -> None:
    refuse_mismatch(state["classes"], _classes(model=model, optimizer=optimizer, **others))


def _classes(**objects: Any) -> dict[str, str]:
    return {name: type(value).__name__ for name, value in objects.items()}


def state_of(worker: Worker) -> dict[str, Any]:
    """The whole state of a worker, as tensors and plain values."""
    elastic = worker.comm.membership is not None
    # What is left for all, in every part of a checkpoint: the host of another part may be lost.
    rest = {} if worker.places.whole else {"rest": converted(worker.position.rest(), np.ndarray, torch.from_numpy)}
    return {
        **rest,
        **({"membership": worker.history, "departed": list(worker.departed)} if elastic else {}),
        **trained_state(worker.model, worker.optimizer, **worker.others),
        **worker.stepper.state_dict(),
        "reached": worker.control.reached,
        "position": worker.position.state_dict(),
        "order": worker.order.state_dict(),
        "batch": worker.batch.state_dict(),
    }


def load_worker(worker: Worker, path: Path, missing: Sequence[int] = ()) -> None:
    """Put a worker where the checkpoint left it; on another number of workers, where all of them together were.

    missing: workers whose files are lost. Their models are left out, their examples are not.
    """
    manifest, own, fresh = read_manifest(path), worker.comm.rank, state_of(worker)
    fresh.pop("rest", None)
    if manifest["workers"] == worker.comm.size and not missing:
        with reading(path, own):
            state = read_worker(path, manifest, own)
            refuse_other_classes(state, worker.model, worker.optimizer, **worker.others)
            refuse_other_contents(state, fresh, worker.optimizer, {axis: getattr(worker, axis) for axis in _METHODS})
            put_back(worker, state)
            _load_membership(worker, state)
        return
    states = []
    present = [rank for rank in range(manifest["workers"]) if rank not in missing]
    for rank in present:
        with reading(path, rank):
            states.append(read_worker(path, manifest, rank))
            refuse_other_classes(states[-1], worker.model, worker.optimizer, **worker.others)
            kept = {name: value for name, value in fresh.items() if name not in _METHODS}
            refuse_other_contents(states[-1], kept, worker.optimizer, {})
    with reading(path, present[0]):
        load_resharded(worker, states, whole=not missing)
        _load_membership(worker, states[0])


def _load_membership(worker: Worker, state: dict[str, Any]) -> None:
    """Who came and went before, and what those have done who are here no longer."""
    worker.history = state.get("membership", [])
    worker.departed = Done(*state.get("departed", ()))


def put_back(worker: Worker, state: dict[str, Any]) -> None:
    """What `state_of` gave, on as many workers."""
    load_trained(state, worker.model, worker.optimizer, **worker.others)
    worker.control.reached = state.get("reached")
    worker.stepper.load_state_dict(state)
    worker.order.load_state_dict(state["order"])
    worker.batch.load_state_dict(state["batch"])
    worker.position.load_state_dict(state["position"])


def load_resharded(worker: Worker, states: list[dict[str, Any]], *, whole: bool = True) -> None:
    """Resume on another number of workers (see `checkpoint.reshard`). whole: these are the states of all."""
    merged = {"model": mean([s["model"] for s in states]), "optimizer": mean([s["optimizer"] for s in states])}
    load_trained({**states[0], **merged}, worker.model, worker.optimizer, rng=False, **worker.others)
    clock, ledger = worker.clock, worker.comm.ledger
    clock.load_state_dict(states[0]["clock"])
    first = worker.comm.rank == 0
    clock.samples = sum(s["clock"]["samples"] for s in states) if first else 0
    totals = {key: sum(s["ledger"][key] for s in states) if first else 0 for key in ("messages", "bytes")}
    now = max(s["now"] for s in states)
    last = next(s["ledger"] for s in states if s["now"] == now)  # its seconds are those of the run so far
    ledger.load_state_dict(last | totals)
    if worker.comm.virtual:
        worker.comm.now = now  # type: ignore[misc]
    if whole:
        worker.position.redistribute([s["position"] for s in states])
    else:
        worker.position.deal(converted(states[0]["rest"], torch.Tensor, torch.Tensor.numpy))
        clock.samples = clock.consumed if first else 0
    worker.stepper.guard.keep_buffers()
    seed_worker(worker.job.seed + 7919 * clock.step, worker.comm.rank)
