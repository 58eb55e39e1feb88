"""Writes a checkpoint in the background, while the loop goes on.

Every worker has a thread that writes its own file, syncs it, and then a small entry for the manifest. The thread of
worker 0 waits for all entries, writes the manifest, and renames the folder into place. No collective is needed for
that: workers meet in the file system. Where hosts have folders of their own, the first worker of each does so there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core.errors import CheckpointError
from ..core.writing import writing

_LOOK = 0.005  # seconds between looks at the entries of the others; later ones are rarer


class Plan(NamedTuple):
    """What is written, and where."""

    top: Path  # the folder of all checkpoints
    step: int
    token: str  # of this attempt: what a killed one left behind is never taken for its own
    manifest: dict[str, Any]  # without the entries of the files
    ranks: tuple[int, ...]  # of the workers that write to this folder; the first of them completes it

    @property
    def final(self) -> Path:
        return self.top / f"step-{self.step}"

    @property
    def part(self) -> Path:
        return self.top / f".step-{self.step}.{self.token}.partial"


class Writer(threading.Thread):
    """Writes one worker's part of a checkpoint. It ends by itself, or when it is told to `give_up`.

    finish: called by the thread that completes the checkpoint, once the checkpoint is in place.
    """

    def __init__(self, plan: Plan, rank: int, state: dict[str, Any], finish: Callable[[Path], None]):
        super().__init__(name=f"checkpoint-{rank}", daemon=False)  # Python waits for it before it ends
        self.plan, self.rank, self.state, self.finish = plan, rank, state, finish
        self.problem: BaseException | None = None
        self.written = threading.Event()  # this worker's own file is there, or cannot be
        self._hopeless = threading.Event()

    def run(self) -> None:
        plan = self.plan
        try:
            with writing(plan.part, CheckpointError):
                if self.rank == plan.ranks[0]:
                    _remove_unfinished(plan)
                plan.part.mkdir(parents=True, exist_ok=True)
                _write_worker(plan.part, self.rank, self.state)
            self.written.set()
            if self.rank == plan.ranks[0] and self._all_there():
                with writing(plan.final, CheckpointError):
                    self._complete()
                self.finish(plan.final)
        except BaseException as error:
            self.problem = error
        finally:
            self.state = {}
            self.written.set()

    def give_up(self) -> None:
        """The file of another worker will never be there."""
        self._hopeless.set()

    def _all_there(self) -> bool:
        """Wait for the entries of all workers; in vain, if this program ends or another worker has failed."""
        pause = _LOOK
        while len(list(self.plan.part.glob("worker-*.json"))) < len(self.plan.ranks):
            if self._hopeless.wait(pause) or not threading.main_thread().is_alive():
                return False
            pause = min(2 * pause, 0.1)
        return True

    def _complete(self) -> None:
        plan = self.plan
        entries = [plan.part / f"worker-{rank}.json" for rank in plan.ranks]
        manifest = plan.manifest | {"files": [json.loads(entry.read_text()) for entry in entries]}
        _write(plan.part / "manifest.json", json.dumps(manifest, indent=1).encode())
        for entry in entries:
            entry.unlink()
        _sync_folder(plan.part)
        if plan.final.exists():
            os.rename(plan.final, plan.top / f".step-{plan.step}.old")
        os.rename(plan.part, plan.final)
        _sync_folder(plan.top)


def _write_worker(folder: Path, rank: int, state: dict[str, Any]) -> None:
    """One worker's file, and then its entry, which says that the file is complete."""
    path = folder / f"worker-{rank}.pt"
    torch.save(state, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        sha = hashlib.sha256()
        while chunk := file.read(1 << 20):  # Python's lock is free while a chunk is read and hashed
            sha.update(chunk)
    entry = {"name": path.name, "sha256": sha.hexdigest(), "bytes": path.stat().st_size}
    half = folder / f".worker-{rank}"
    _write(half, json.dumps(entry).encode())
    os.rename(half, folder / f"worker-{rank}.json")


def remove(checkpoint: Path) -> None:
    """Take its name away first: a kill in the middle leaves nothing that looks like a checkpoint."""
    name = checkpoint.name.removeprefix(".")
    with contextlib.suppress(OSError):
        os.rename(checkpoint, gone := checkpoint.with_name(f".{name}.{time.time_ns():x}.removed"))
        shutil.rmtree(gone, ignore_errors=True)


def _remove_unfinished(plan: Plan) -> None:
    """What killed attempts left behind. A folder of this one may be there already: another worker was faster."""
    for path in plan.top.glob(".step-*"):
        if path != plan.part:
            shutil.rmtree(path, ignore_errors=True)


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
