"""Resume where every host has its own part of the checkpoints: agree on one, and give each host what it needs of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..comm.base import Comm
from ..core.errors import CheckpointError
from .places import Places
from .store import available, read_manifest


class Held(NamedTuple):
    """What one folder has of a checkpoint."""

    manifest: dict[str, Any]
    ranks: tuple[int, ...]  # whose files are there


def agree(
    comm: Comm, folder: Path, step: int | None, places: Places, *, without_missing: bool = False
) -> tuple[Path, list[int]]:
    """The newest checkpoint of which all parts are here, or that of a step; and the workers whose files are missing.

    Afterwards this folder has the files that its workers need. Collective: all raise the same error.
    """
    told = comm.gather_objects({_step(path): _held(path) for path in available(folder)})
    chosen, missing = _choose(told, folder, step, without_missing)
    if comm.rank == 0 and missing:
        names = ", ".join(f"worker {rank}" for rank in missing)
        print(f"equipoise: note: step {chosen} goes on without the files of {names}", file=sys.stderr, flush=True)
    path = folder / "checkpoints" / f"step-{chosen}"
    _fetch(comm, path, [row.get(chosen) for row in told], places, chosen, missing)
    return path, missing


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _held(path: Path) -> Held | None:
    """None for one that is damaged: it counts as if it were not there."""
    try:
        manifest = read_manifest(path)
        intact = [row for row in manifest["files"] if _sha(path / row["name"]) == row["sha256"]]
    except (CheckpointError, OSError):
        return None
    return Held(manifest, tuple(int(re.findall(r"\d+", row["name"])[0]) for row in intact))


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _choose(
    told: list[dict[int, Held | None]], folder: Path, step: int | None, without_missing: bool
) -> tuple[int, list[int]]:
    steps = sorted({number for row in told for number in row}, reverse=True)
    if not steps:
        raise CheckpointError(f"no host has a checkpoint in {folder}: start the run again with another --out")
    if step is not None and step not in steps:
        raise CheckpointError(f"no host has a checkpoint of step {step}; there are: {', '.join(map(str, steps))}")
    lacks = {number: _missing(told, number) for number in ([step] if step is not None else steps)}
    for number, (missing, _) in lacks.items():
        if not missing:
            return number, []
    number = next(iter(lacks))
    missing, hosts = lacks[number]
    if without_missing:
        return number, missing
    words = ", ".join(f"worker {rank} (host {hosts[rank]})" for rank in missing)
    raise CheckpointError(
        f"the checkpoint of step {number} lacks the files of {words}: start a worker there too, copy "
        f"{folder}/checkpoints/step-{number} from there, or add --without-missing to go on without these models"
    )


def _missing(told: list[dict[int, Held | None]], step: int) -> tuple[list[int], list[str]]:
    """Of a checkpoint: workers whose files nobody has, and the host of each worker."""
    parts = [held for row in told if (held := row.get(step)) is not None]
    if not parts:
        return [0], ["unknown"]
    # Parts of different attempts are parts of different checkpoints: the one with the most files counts.
    best: tuple[int, set[int], dict[str, Any]] | None = None
    for attempt in sorted({str(held.manifest.get("attempt")) for held in parts}):
        same = [held for held in parts if str(held.manifest.get("attempt")) == attempt]
        ranks = {rank for held in same for rank in held.ranks}
        if best is None or len(ranks) > best[0]:
            best = len(ranks), ranks, same[0].manifest
    assert best is not None
    _, ranks, manifest = best
    workers = manifest["workers"]
    hosts = manifest.get("hosts") or ["unknown"] * workers
    return [rank for rank in range(workers) if rank not in ranks], list(hosts)


def _fetch(comm: Comm, path: Path, told: list[Held | None], places: Places, step: int, missing: list[int]) -> None:
    """Send the files of workers to the folders that need and do not have them."""
    manifest = max((held for held in told if held is not None), key=lambda held: len(held.ranks)).manifest
    attempt, workers = manifest.get("attempt"), manifest["workers"]
    holds = [
        set(held.ranks) if held is not None and held.manifest.get("attempt") == attempt else set() for held in told
    ]
    rows = {row["name"]: row for held in told if held is not None for row in held.manifest["files"]}
    received: dict[str, Any] = {}
    for worker in range(workers):
        if worker in missing:
            continue
        # On as many workers each needs its own file, on another number all of them.
        needing = {places.first[worker]} if workers == comm.size and not missing else set(places.first)
        if all(worker in holds[rank] for rank in needing):
            continue
        source = next(rank for rank in range(comm.size) if worker in holds[rank])
        name = f"worker-{worker}.pt"
        data = (path / name).read_bytes() if comm.rank == source else b""
        size = comm.gather_objects(len(data))[source]
        message = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(size, dtype=torch.uint8)
        with comm.uncounted():
            comm.broadcast(message, source)
        if comm.rank in needing and worker not in holds[comm.rank]:
            path.mkdir(parents=True, exist_ok=True)
            half = path / f".{name}"
            half.write_bytes(message.numpy().tobytes())
            os.rename(half, path / name)
            received[name] = rows[name]
    if places.leads(comm.rank):
        own = {f"worker-{rank}.pt": rows[f"worker-{rank}.pt"] for rank in holds[comm.rank]} | received
        path.mkdir(parents=True, exist_ok=True)
        half = path / ".manifest"
        half.write_text(json.dumps(manifest | {"files": [own[name] for name in sorted(own)]}, indent=1))
        os.rename(half, path / "manifest.json")
    comm.gather_objects(None)  # what a folder has received is there for all who share it
