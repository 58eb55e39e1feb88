"""Checkpoints of a loop of one's own: what they hold, and how it is put back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.match import refuse_mismatch
from ..checkpoint.store import read_manifest, read_worker
from ..core.errors import CheckpointError
from ..core.method import Method
from .contents import reading, refuse_other_contents
from .own_loop import fingerprint_of
from .state import load_rng, load_trained, refuse_other_classes, trained_state

if TYPE_CHECKING:
    from .attach import attach


def whole_state(together: attach) -> dict[str, Any]:
    """Everything that decides the rest of the loop on this worker."""
    return trained_state(together.model, together.optimizer, **_others(together)) | together.state_dict()


def put_back(together: attach, path: Path) -> None:
    """Put this worker where a checkpoint left it."""
    manifest, comm = read_manifest(path), together.comm
    refuse_mismatch(manifest["fingerprint"], fingerprint_of(together))
    if manifest["workers"] != comm.size:
        raise CheckpointError(
            f"{path} is of {manifest['workers']} workers and there are {comm.size}: start as many; eq.train and "
            "`equipoise resume` can change their number"
        )
    model, optimizer, others = together.model, together.optimizer, _others(together)
    with reading(path, comm.rank):
        state = read_worker(path, manifest, comm.rank)
        refuse_other_classes(state, model, optimizer, **others)
        refuse_other_contents(state, whole_state(together), optimizer, _methods(together))
        load_trained(state, model, optimizer, **others)
        together.load_state_dict(state)
    if together.sampler is not None:
        together.sampler.continue_with(lambda: load_rng(state))


def _others(together: attach) -> dict[str, Any]:
    return {"scheduler": together.scheduler, "scaler": together.scaler}


def _methods(together: attach) -> dict[str, Method]:
    """Those whose states are part of it, by their places there."""
    methods: dict[str, Method] = {"sync": together.sync, "wire": together.step.wire, "period": together.period}
    if together.sampler is not None:
        methods |= {"sampler.order": together.sampler.order, "sampler.batch": together.sampler.batch}
    return methods
