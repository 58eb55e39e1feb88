"""Checkpoints of a loop of one's own: what they hold, how they are written, and how they are put back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.match import refuse_mismatch
from ..checkpoint.parts import agree
from ..checkpoint.places import find_places
from ..checkpoint.store import available, choose, read_manifest, read_worker
from ..core.errors import CheckpointError
from ..core.method import Method
from .contents import reading, refuse_other_contents
from .own_loop import fingerprint_of
from .state import load_rng, load_trained, refuse_other_classes, trained_state

if TYPE_CHECKING:
    from .attach import attach


def whole_state(together: attach) -> dict[str, Any]:
    """Everything that decides the rest of the loop on this worker."""
    return trained_state(together.saved_model, together.optimizer, **_others(together)) | together.state_dict()


def save(together: attach, wait: bool) -> Path:
    """Begin to write a checkpoint, all workers together; `wait` until it is in place."""
    together.step.guard.meet()
    state = whole_state(together)
    # Those of the average worker, where each takes its own number of steps.
    steps = sum(together.comm.gather_objects(together.clock.step)) // together.comm.size
    path = together.store.save(state, steps, together.clock.epoch, fingerprint_of(together))
    if wait:
        together.store.wait()
    if together.elastic is not None:
        together.elastic.saved()
    return path


def found(together: attach, step: int | None) -> Path | None:
    """The checkpoint to resume from: the newest of all workers, or that of a step. None where nobody has one."""
    assert together.log is not None
    comm, folder = together.everyone, together.log
    if together.claimed:
        together.store.wait()
    if comm.membership is not None and comm.membership.waiting:
        return None  # the others know where the run is
    places = find_places(comm, folder)
    if step is None and not any(comm.gather_objects(bool(available(folder)))):
        return None
    return choose(folder, step) if places.whole else agree(comm, folder, step, places)[0]


def put_back(together: attach, path: Path) -> None:
    """Put this worker where a checkpoint left it."""
    manifest, comm = read_manifest(path), together.everyone
    refuse_mismatch(manifest["fingerprint"], fingerprint_of(together))
    if manifest["workers"] != comm.size:
        raise CheckpointError(
            f"{path} is of {manifest['workers']} workers and there are {comm.size}: start as many; eq.train and "
            "`equipoise resume` can change their number"
        )
    with reading(path, comm.rank):
        put_back_state(together, read_worker(path, manifest, comm.rank))


def put_back_state(together: attach, state: dict[str, Any]) -> None:
    """Put this worker where it was when `whole_state` gave this."""
    model, optimizer, others = together.saved_model, together.optimizer, _others(together)
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
