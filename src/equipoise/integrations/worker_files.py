"""Each worker's state as a file of its own, inside the checkpoint folder of a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..core.errors import CheckpointError
from ..loop.attach import attach
from .worker_state import put_back_worker_state, worker_state


def save_workers(together: attach, checkpoint: Path) -> None:
    """Write what each worker needs to go on; all workers call it together, and raise the same error."""
    state, comm, problem = worker_state(together), together.comm, None
    path = _path(checkpoint, comm.rank)
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer does not say why it could not write
        problem = f"cannot write {path}: {str(error).splitlines()[0]}"
    for told in comm.gather_objects(problem):
        if told is not None:
            raise CheckpointError(told)


def load_workers(together: attach, checkpoint: Path) -> None:
    """Put every worker back where `save_workers` found it."""

    def read() -> dict[str, Any]:
        path = _path(checkpoint, together.comm.rank)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state

    put_back_worker_state(together, read, str(checkpoint))
    together.open_log(resumed=together.log is not None and (together.log / "events.jsonl").exists())


def _path(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"equipoise-worker-{rank}.pt"
