"""What `attach` says of the choices of a loop of one's own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..comm.membership import Membership
from ..config.fingerprint import flattened, tables_of
from ..config.fit import check_elastic
from ..core.context import WorkerInfo, describe
from ..core.errors import UserError

if TYPE_CHECKING:
    from .attach import attach


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
    return flattened(tables_of(methods) | settings)


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
