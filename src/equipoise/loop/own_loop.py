"""What `attach` says of the choices of a loop of one's own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import nn

from ..comm.membership import Membership
from ..config.fingerprint import flattened, tables_of
from ..config.fit import check_elastic, check_fit, check_settings
from ..core.context import WorkerInfo, describe
from ..core.errors import UserError
from ..observe.observer import class_counts
from .drift import Place
from .islands import check_island
from .sampler import refuse_unknown_sampler
from .wrappers import refuse_wrapped, refuse_wrapped_optimizer

if TYPE_CHECKING:
    from .attach import attach


def check_choices(together: attach) -> None:
    """Refuse arguments that fit neither each other nor the model and the optimizer."""
    check_settings(buffers=together.buffer_policy, nonfinite=together.nonfinite, seed=together.seed)
    if together.buffer_policy == "recompute":
        raise UserError("buffers = 'recompute': local or average; recompute them in your own evaluation")
    sampler, sync, final = together.sampler, together.sync_choice, together.final
    order, batch = (None, None) if sampler is None else (sampler.order_choice, sampler.batch_choice)
    check_fit(period=together.period_choice, sync=sync, order=order, batch=batch)
    for name in ("accumulate", "log_every", "keep"):
        if getattr(together, name) < 1:
            raise UserError(f"{name} = {getattr(together, name)}: at least 1 is needed")
    if final not in (None, "mean", "centre"):
        raise UserError(f"final = {final!r}: mean or centre, or leave it out to keep each worker's own model")
    if final == "centre" and not sync.centre_state:
        raise UserError(f"{type(sync).__name__} has no centre: pass final='mean'")
    if together.timeout is not None and not together.timeout > 0:
        raise UserError(f"timeout = {together.timeout}: must be above zero")
    if not isinstance(together.model, nn.Module) or not hasattr(together.optimizer, "param_groups"):
        kinds = f"{type(together.model).__name__} and {type(together.optimizer).__name__}"
        raise UserError(f"a model and its optimizer are needed, not {kinds}: write eq.attach(model, optimizer)")
    if together.levels is None:
        refuse_wrapped(together.model)
    else:
        partition = None if sampler is None else sampler.partition
        check_island(together, order, partition)
    refuse_wrapped_optimizer(together.optimizer)
    trainable = {id(p) for p in together.model.parameters() if p.requires_grad}
    held = {id(p) for group in together.optimizer.param_groups for p in group["params"]}
    if not trainable <= held:
        raise UserError(
            "the optimizer does not hold all trainable parameters of the model: build it from model.parameters()"
        )


def worker_of(together: attach) -> WorkerInfo:
    """The description of this worker, with the shares of all."""
    comm, sampler = together.comm, together.sampler
    known = describe(comm, seed=together.seed) if sampler is None else sampler.worker
    share = known.share if together.share is None else together.share
    told = comm.gather_objects((share, together.deterministic))
    for rank, (_, deterministic) in enumerate(told):
        if deterministic != told[0][1]:
            raise UserError(
                f"deterministic is {told[0][1]} on worker 0 and {deterministic} on worker {rank}: pass the same"
            )
    return dataclasses.replace(known, seed=together.seed, shares=tuple(share for share, _ in told))


def classes_of(together: attach) -> list[int] | None:
    """The number of this worker's examples of each class, where that is known."""
    if together.sampler is None:
        return None
    return class_counts(together.sampler.source.view().labels, together.sampler.position.own_block)


def fingerprint_of(together: attach) -> dict[str, Any]:
    """The choices that a checkpoint of this loop must agree with."""
    sampler = together.sampler
    methods: dict[str, Any] = {
        "period": together.period_choice,
        "sync": together.sync_choice,
        "wire": together.wire_choice,
    }
    settings: dict[str, Any] = {"buffers": together.buffer_policy, "clip": together.clip, "seed": together.seed}
    if sampler is not None:
        methods |= {"partition": sampler.partition, "order": sampler.order_choice, "batch": sampler.batch_choice}
        settings |= {"drop_last": sampler.drop_last, "examples": len(sampler.source)}
    if together.levels is not None:
        settings |= {"islands": [list(row) for row in together.levels.layout], "replicas": together.island.replicas}
    return flattened(tables_of(methods) | settings)


def settings_of(together: attach) -> dict[str, Any]:
    """The settings of this loop that must be the same on all of its workers."""
    settings = {name: getattr(together, name) for name in ("accumulate", "nonfinite", "final", "keep", "log_every")}
    given = {"log": together.log is not None, "scaler": together.scaler is not None}
    return {**fingerprint_of(together), **settings, **given}


def place_of(together: attach) -> Place | None:
    """Where the steps of this loop are in the data."""
    sampler = together.sampler
    return None if sampler is None else Place(sampler.position, sampler.taken_by_steps())


def check_elastic_loop(together: attach, membership: Membership) -> None:
    """Refuse choices with which workers cannot come and go."""
    if together.scaler is not None:
        raise UserError("elastic cannot take back a step of a GradScaler: use bfloat16, which needs none")
    sampler = together.sampler
    check_elastic(
        membership.elasticity.least,
        membership.elasticity.most,
        period=together.period_choice,
        sync=together.sync_choice,
        wire=together.wire_choice,
        batch=None if sampler is None else sampler.batch_choice,
        partition=None if sampler is None else sampler.partition,
    )


def check_first_step(together: attach, scaler: Any) -> None:
    """Refuse a loop that does not tell all that it does. scaler: the GradScaler that takes this step, if one does."""
    if together.comm.size > 1 and scaler not in (None, together.scaler):
        raise UserError(
            "a GradScaler takes the steps of this loop, and at an overflow one worker would skip a step that the "
            "others take: pass scaler=scaler to eq.attach"
        )
    if together.sampler is None:
        refuse_unknown_sampler(together.comm)
