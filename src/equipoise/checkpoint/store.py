"""Checkpoints that survive a kill at any moment and load without running code from the file.

    RUN/checkpoints/step-N/worker-R.pt     everything that decides worker R's future
    RUN/checkpoints/step-N/manifest.json   step, number of workers, a checksum per file, the recipe's choices

A checkpoint is written beside (`.step-N.partial`), synced and renamed into place; older ones are removed only after
that. Every worker has a file of its own, because workers' models differ between rounds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.errors import CheckpointError
from ..core.random import rng_state, set_rng_state
from .match import refuse_mismatch

if TYPE_CHECKING:
    from ..loop.worker import Worker

FORMAT = 1


def save(worker: Worker) -> Path:
    """Write one checkpoint, all workers together."""
    assert worker.job.folder is not None
    comm, step = worker.comm, worker.pace.steps
    top = worker.job.folder / "checkpoints"
    part, final = top / f".step-{step}.partial", top / f"step-{step}"
    problem = None
    try:
        if comm.rank == 0:
            for left in top.glob(".step-*"):  # by runs that were killed
                shutil.rmtree(left, ignore_errors=True)
            part.mkdir(parents=True)
    except OSError as error:
        problem = f"cannot write checkpoints to {top}: {error.strerror}; free space or choose another --out"
    _all_well(comm.gather_objects(problem))
    own: dict[str, Any] = {}
    try:
        buffer = io.BytesIO()
        torch.save(state_of(worker), buffer)
        data = buffer.getbuffer()
        name = f"worker-{comm.rank}.pt"
        _write(part / name, data)
        own = {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    except OSError as error:
        problem = f"cannot write {part}: {error.strerror}; free space or choose another --out"
    files = comm.gather_objects((problem, own))
    _all_well([p for p, _ in files])
    if comm.rank == 0:
        manifest = {
            "format": FORMAT,
            "step": step,
            "epoch": worker.clock.epoch,
            "workers": comm.size,
            "files": [f for _, f in files],
            "fingerprint": worker.job.fingerprint,
        }
        try:
            _write(part / "manifest.json", json.dumps(manifest, indent=1).encode())
            _sync_folder(part)
            if final.exists():
                os.rename(final, top / f".step-{step}.old")
            os.rename(part, final)
            _sync_folder(top)
        except OSError as error:
            problem = f"cannot write {final}: {error.strerror}; free space or choose another --out"
        else:
            worker.saved.add(step)
            _remove_old(worker)
    _all_well(comm.gather_objects(problem))
    worker.observer.emit("checkpoint", path=final.name)
    return final


def _remove_old(worker: Worker) -> None:
    """Leave the last `keep` checkpoints of this run's own past: those after the one it resumed from were given up."""
    run, resumed = worker.job.folder, worker.job.resume
    assert run is not None
    start = int(resumed.name.split("-")[1]) if resumed is not None else -1
    found = available(run)
    own = [path for path in found if (n := int(path.name.split("-")[1])) <= start or n in worker.saved]
    kept = own[-worker.job.keep :]
    for path in [*(path for path in found if path not in kept), *(run / "checkpoints").glob(".step-*.old")]:
        shutil.rmtree(path, ignore_errors=True)


def state_of(worker: Worker) -> dict[str, Any]:
    """Everything that decides this worker's future, as tensors and plain values."""
    torch_rng, python_rng, numpy_rng = rng_state()
    kind, keys, *rest = numpy_rng
    return {
        "model": worker.model.state_dict(),
        "optimizer": worker.optimizer.state_dict(),
        "scheduler": worker.scheduler.state_dict() if worker.scheduler is not None else None,
        "rng": {
            "torch": torch_rng,
            "python": python_rng,
            "numpy": (kind, torch.from_numpy(keys.astype("int64")), *rest),
        },
        "classes": classes_of(worker),
        "clock": worker.clock.state_dict(),
        "ledger": worker.comm.ledger.state_dict(),
        "now": worker.comm.now,
        "reached": worker.control.reached,
        "position": worker.position.state_dict(),
        **{axis: getattr(worker, axis).state_dict() for axis in ("order", "batch", "period", "sync")},
    }


def load_worker(worker: Worker, path: Path) -> None:
    """Put a worker where the checkpoint left it; on another number of workers, where all of them together were."""
    manifest = read_manifest(path)
    if manifest["workers"] != worker.comm.size:
        from .reshard import load_resharded

        load_resharded(worker, [read_worker(path, manifest, r) for r in range(manifest["workers"])])
        return
    state = read_worker(path, manifest, worker.comm.rank)
    load_trained(worker, state, state["classes"])
    worker.clock.load_state_dict(state["clock"])
    worker.comm.ledger.load_state_dict(state["ledger"])
    worker.control.reached = state.get("reached")
    if worker.comm.virtual:
        worker.comm.now = state["now"]  # type: ignore[misc]
    for axis in ("order", "batch", "period", "sync"):
        getattr(worker, axis).load_state_dict(state[axis])
    worker.position.load_state_dict(state["position"])
    kind, keys, *rest = state["rng"]["numpy"]
    set_rng_state((state["rng"]["torch"], state["rng"]["python"], (kind, keys.numpy().astype(np.uint32), *rest)))


def load_trained(worker: Worker, state: dict[str, Any], classes: dict[str, str]) -> None:
    """Model, optimizer and scheduler, if they are of the kind that was saved."""
    refuse_mismatch(classes, classes_of(worker))
    try:
        worker.model.load_state_dict(state["model"])
        worker.optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint is of another model or other parameter groups: {error}") from None
    if worker.scheduler is not None:
        worker.scheduler.load_state_dict(state["scheduler"])


def classes_of(worker: Worker) -> dict[str, str]:
    return {name: type(getattr(worker, name)).__name__ for name in ("model", "optimizer", "scheduler")}


def available(run: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    found = [p for p in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted(found, key=lambda p: int(p.name.split("-")[1]))


def choose(run: Path, step: int | None = None) -> Path:
    """The checkpoint to resume from, verified; the newest unless a step is named."""
    found = available(run)
    if not found:
        raise CheckpointError(
            f"{run} has no checkpoint to resume from: start it again with `equipoise train` and another --out"
        )
    if step is not None:
        named = [p for p in found if p.name == f"step-{step}"]
        if not named:
            raise CheckpointError(
                f"{run} has no checkpoint of step {step}; there are: {', '.join(p.name for p in found)}"
            )
        found = named
    verify(found[-1], found[:-1])
    return found[-1]


def verify(path: Path, older: list[Path]) -> dict[str, Any]:
    """Check every file of a checkpoint against its checksum."""
    hint = ""
    if older:
        hint = f"; resume from the one before with --from {older[-1].name.split('-')[1]}"
    manifest = read_manifest(path, hint)
    for row in manifest["files"]:
        try:
            sha = hashlib.sha256((path / row["name"]).read_bytes()).hexdigest()
        except OSError:
            raise CheckpointError(f"checkpoint {path} is damaged: {row['name']} is missing{hint}") from None
        if sha != row["sha256"]:
            raise CheckpointError(f"checkpoint {path} is damaged: the checksum of {row['name']} does not match{hint}")
    return manifest


def read_manifest(path: Path, hint: str = "") -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        known = manifest["format"]
        if known == FORMAT:
            _ = (
                manifest["workers"],
                manifest["fingerprint"],
                [(row["name"], row["sha256"]) for row in manifest["files"]],
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: manifest.json ({type(error).__name__}){hint}") from None
    if known != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {known}, this version reads {FORMAT}: use the version that wrote it"
        )
    return manifest


def read_worker(path: Path, manifest: dict[str, Any], rank: int) -> dict[str, Any]:
    try:
        return torch.load(path / f"worker-{rank}.pt", map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint {path} is damaged: worker-{rank}.pt cannot be read ({first})") from None


def _all_well(problems: list[str | None]) -> None:
    """Every worker raises the same error, so that nobody waits for one that failed."""
    for problem in problems:
        if problem is not None:
            raise CheckpointError(problem)


def _write(path: Path, data: Any) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
