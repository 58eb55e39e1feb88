"""Checkpoints that survive a kill at any moment and load without running code from the file.

    RUN/checkpoints/step-N/worker-R.pt     everything that decides worker R's future
    RUN/checkpoints/step-N/manifest.json   step, number of workers, a checksum per file, the recipe's choices

A checkpoint is written beside (`.step-N.*.partial`), synced and renamed into place; older ones are removed only after
that. Every worker has a file of its own, because workers' models differ between rounds. `writer` writes them. Hosts
without a common folder keep the files of their own workers (`places`), and `parts` finds them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..comm.base import Comm, barrier
from ..core.copied import copied
from ..core.errors import CheckpointError, UserError
from ..core.json import parse_json
from ..core.torchrun import MOST_WORKERS
from .places import Places, find_places
from .writer import Plan, Writer, remove

FORMAT = 2
IN_PARTS = 3  # the same, of the workers of one folder; others have the other files
LIVE = ("model", "optimizer", "scheduler", "scaler")  # parts of a state that the next step changes in place
_PATIENCE = 3.0  # seconds in which a worker that fails lets its last checkpoint be completed


class Store:
    """The checkpoints of one run, written by all workers together while the loop goes on.

    `save` copies the state and returns; a thread writes it. What that thread cannot do is told by `wait`, which the
    next `save` calls too, or where workers meet (`failed`, `tell`): by the same error on all workers.

    done: called with the path on worker 0, by its thread, once a checkpoint is in place.
    """

    def __init__(
        self,
        comm: Comm,
        folder: Path,
        keep: int,
        resumed: Path | None = None,
        done: Callable[[Path], None] = lambda path: None,
        places: Places | None = None,
    ):
        self.comm, self.folder, self.keep, self.done = comm, folder, keep, done
        self.places = places or find_places(comm, folder)
        self._start = _step_of(resumed) if resumed is not None else -1
        self._saved: set[int] = set()  # steps of the checkpoints that this run has written
        self._token = ""
        self._writer: Writer | None = None
        self._spare: Any = None  # the copy of the last state: its memory is used again

    def save(self, state: dict[str, Any], step: int, epoch: int, fingerprint: dict[str, Any]) -> Path:
        """Begin to write one checkpoint, each worker its own state; first wait for the one before.

        Of `state` what belongs to torch (`LIVE`) is copied here; the rest must be copies already.
        """
        self.wait()
        comm = self.comm
        self._token = self._token or comm.gather_objects(f"{os.getpid():x}-{time.time_ns():x}")[0]
        manifest = {"format": FORMAT, "step": step, "epoch": epoch, "workers": comm.size, "fingerprint": fingerprint}
        if not self.places.whole:
            manifest |= {"format": IN_PARTS, "attempt": self._token, "hosts": list(self.places.hosts)}
        plan = Plan(self.folder / "checkpoints", step, self._token, manifest, self.places.sharing(comm.rank))
        with contextlib.suppress(OSError):  # the thread tells of it
            plan.part.mkdir(parents=True, exist_ok=True)  # here, so that `settled` knows from now on what to wait for
        live = {name: state[name] for name in LIVE if name in state}
        self._spare = copied(live, self._spare, "cpu")
        self._writer = Writer(plan, comm.rank, state | self._spare, self._finished)
        self._writer.start()
        return plan.final

    def wait(self) -> None:
        """Return when the last checkpoint is in place; all workers call it together, and raise the same error."""
        writer = self._writer
        if writer is None:
            return
        if self.comm.virtual:
            barrier(self.comm)  # others that have not begun yet get their turn
        writer.written.wait()
        self.tell(self._everywhere(writer.problem is not None))
        writer.join()
        self.tell(self._everywhere(writer.problem is not None))
        self._writer = None
        if not self.places.whole and self.places.leads(self.comm.rank):
            self._remove_old()

    @property
    def failed(self) -> bool:
        """Is there something to tell all workers of?"""
        return self._writer is not None and self._writer.problem is not None

    def tell(self, failed: bool) -> None:
        """If a worker has failed, raise its error on all workers, which call this together."""
        if not failed:
            return
        writer, self._writer = self._writer, None
        assert writer is not None
        writer.give_up()
        writer.join()
        if writer.problem is not None and not isinstance(writer.problem, UserError):
            raise writer.problem
        problems = self.comm.gather_objects(None if writer.problem is None else str(writer.problem))
        raise CheckpointError(next(problem for problem in problems if problem is not None))

    def leave(self) -> None:
        """This worker fails: let what it has begun to write be completed, as far as that needs nobody else."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.written.wait(_PATIENCE)
            writer.join(timeout=_PATIENCE / 10)
            writer.give_up()
        self.done = lambda path: None  # the log is about to be closed

    def _everywhere(self, failed: bool) -> bool:
        with self.comm.uncounted():
            return bool(self.comm.gather(torch.tensor(failed)).any())

    def _finished(self, path: Path) -> None:
        """Called by the thread that has completed a checkpoint."""
        self._saved.add(_step_of(path))
        if self.places.whole:  # otherwise it is complete when all folders have their parts
            self._remove_old()
        self.done(path)

    def _remove_old(self) -> None:
        """Leave the last `keep` checkpoints of this run's own past: those after the one it resumed from were given
        up.
        """
        checkpoints = available(self.folder)
        own = [p for p in checkpoints if _step_of(p) <= self._start or _step_of(p) in self._saved]
        kept = own[-self.keep :]
        replaced = (self.folder / "checkpoints").glob(".step-*.old")
        for path in [*(path for path in checkpoints if path not in kept), *replaced]:
            remove(path)


@contextlib.contextmanager
def completing(store: Store | None) -> Iterator[None]:
    """A loop that fails completes the checkpoint that it has begun."""
    try:
        yield
    except BaseException:
        if store is not None:
            store.leave()
        raise


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def settled(folder: Path) -> list[Path]:
    """`available`, once those are in place that workers have begun to write; they need no help for that."""
    limit = time.monotonic() + _PATIENCE
    while any((folder / "checkpoints").glob(".step-*.partial")) and time.monotonic() < limit:
        time.sleep(0.01)
    return available(folder)


def available(run: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    top = run / "checkpoints"
    for old in top.glob(".step-*.old"):  # moved aside for a newer one of the same step, which never came
        with contextlib.suppress(OSError):
            if not (final := top / old.name.removesuffix(".old").removeprefix(".")).exists():
                old.rename(final)
    return sorted((p for p in top.glob("step-*") if re.fullmatch(r"step-\d+", p.name)), key=_step_of)


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
        hint = f"; resume from the one before with --from {_step_of(older[-1])}"
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
        manifest: dict[str, Any] = parse_json((path / "manifest.json").read_text())
        known = manifest["format"]
        if known in (FORMAT, IN_PARTS) and not _is_manifest(manifest):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: manifest.json ({type(error).__name__}){hint}") from None
    if known not in (FORMAT, IN_PARTS):
        known = str(known)[:40]
        raise CheckpointError(
            f"checkpoint {path} has format {known}, this version reads {FORMAT}: use the version that wrote it"
        )
    return manifest


def _is_manifest(manifest: dict[str, Any]) -> bool:
    """One file for each worker, by its rank; the recipe as a table."""
    names = [row["name"] for row in manifest["files"] if isinstance(row["sha256"], str)]
    count = manifest["workers"]
    if type(count) is not int or not 0 < count <= MOST_WORKERS or type(manifest["fingerprint"]) is not dict:
        return False
    expected = [f"worker-{rank}.pt" for rank in range(count)]
    if manifest["format"] == IN_PARTS:
        hosts = manifest["hosts"]
        return set(names) <= set(expected) and isinstance(manifest["attempt"], str) and len(hosts) == count
    return names == expected


def read_worker(path: Path, manifest: dict[str, Any], rank: int) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path / f"worker-{rank}.pt", map_location="cpu", weights_only=True)
        return state
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"checkpoint {path} is damaged: worker-{rank}.pt cannot be read ({first})") from None
