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
from typing import Any

import torch

from ..comm.base import Comm
from ..core.errors import CheckpointError

FORMAT = 2


class Store:
    """The checkpoints of one run, written by all workers together."""

    def __init__(self, comm: Comm, folder: Path, keep: int, resumed: Path | None = None):
        self.comm, self.folder, self.keep = comm, folder, keep
        self._start = int(resumed.name.split("-")[1]) if resumed is not None else -1
        self._saved: set[int] = set()  # steps of the checkpoints that this run has written

    def save(self, state: dict[str, Any], step: int, epoch: int, fingerprint: dict[str, Any]) -> Path:
        """Write one checkpoint: each worker its own state, and a manifest."""
        comm = self.comm
        top = self.folder / "checkpoints"
        part, final = top / f".step-{step}.partial", top / f"step-{step}"
        problem = None
        try:
            if comm.rank == 0:
                for unfinished in top.glob(".step-*"):  # by runs that were killed
                    shutil.rmtree(unfinished, ignore_errors=True)
                part.mkdir(parents=True)
        except OSError as error:
            problem = f"cannot write checkpoints to {top}: {error.strerror}; free space or choose another --out"
        _raise_on_all(comm.gather_objects(problem))
        own: dict[str, Any] = {}
        try:
            own = _write_worker(part, comm.rank, state)
        except OSError as error:
            problem = f"cannot write {part}: {error.strerror}; free space or choose another --out"
        files = comm.gather_objects((problem, own))
        _raise_on_all([p for p, _ in files])
        if comm.rank == 0:
            manifest = {
                "format": FORMAT,
                "step": step,
                "epoch": epoch,
                "workers": comm.size,
                "files": [f for _, f in files],
                "fingerprint": fingerprint,
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
                self._saved.add(step)
                self._remove_old()
        _raise_on_all(comm.gather_objects(problem))
        return final

    def _remove_old(self) -> None:
        """Leave the last `keep` checkpoints of this run's own past: those after the one it resumed from were given
        up.
        """
        checkpoints = available(self.folder)
        own = [p for p in checkpoints if (n := int(p.name.split("-")[1])) <= self._start or n in self._saved]
        kept = own[-self.keep :]
        replaced = (self.folder / "checkpoints").glob(".step-*.old")
        for path in [*(path for path in checkpoints if path not in kept), *replaced]:
            shutil.rmtree(path, ignore_errors=True)


def _write_worker(folder: Path, rank: int, state: dict[str, Any]) -> dict[str, Any]:
    """Write one worker's file; its entry in the manifest."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data, name = buffer.getbuffer(), f"worker-{rank}.pt"
    _write(folder / name, data)
    return {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def available(run: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    paths = [p for p in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted(paths, key=lambda p: int(p.name.split("-")[1]))


def choose(run: Path, step: int | None = None) -> Path:
    """The checkpoint to resume from, verified; the newest unless a step is named."""
    checkpoints = available(run)
    if not checkpoints:
        raise CheckpointError(
            f"{run} has no checkpoint to resume from: start it again with `equipoise train` and another --out"
        )
    if step is not None:
        named = [p for p in checkpoints if p.name == f"step-{step}"]
        if not named:
            raise CheckpointError(
                f"{run} has no checkpoint of step {step}; there are: {', '.join(p.name for p in checkpoints)}"
            )
        checkpoints = named
    verify(checkpoints[-1], checkpoints[:-1])
    return checkpoints[-1]


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
        manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text())
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
        state: dict[str, Any] = torch.load(path / f"worker-{rank}.pt", map_location="cpu", weights_only=True)
        return state
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint {path} is damaged: worker-{rank}.pt cannot be read ({first})") from None


def _raise_on_all(problems: list[str | None]) -> None:
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
