"""Checkpoints that were damaged, exchanged or rewritten: refused in a line, and the one before still leads to the end.

Damage breaks a checksum. What is rewritten has the right checksum and the wrong content; who can write files can do that.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from equipoise.checkpoint.store import available
from equipoise.cli.main import main

from .count import Sums
from .victim import Outcome, Victim

FLAGS = "--data synthetic --data.examples 60 --data.features 5 --model logistic --virtual --workers 2 --quiet".split()
MEMORY = 2 << 30  # bytes that a command may ask for, beyond what it has
LIMIT = 40.0  # seconds


def command(words: list[str], said: Path, folder: Path | None = None) -> Outcome:
    """The command, with limited memory and time, in a folder; its first line of error."""

    def run() -> int:
        os.chdir(folder or Path.cwd())
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        return main(words)

    said.unlink(missing_ok=True)
    outcome = Victim(run, said).wait(LIMIT)
    lines = said.read_text(errors="replace").splitlines() if said.exists() else []
    line = next((row for row in lines if row.startswith("equipoise: ") and ": note: " not in row), "")
    return outcome._replace(code=outcome.value if outcome.code == 0 else outcome.code, line=line)


def clear(outcome: Outcome) -> bool:
    """Refused with a line for the user."""
    return outcome.code in (2, 4) and outcome.line.startswith("equipoise: ")


def prepared(folder: Path, sync: str) -> Path:
    """A run of four steps with two checkpoints, and the hash that its end at step 6 has."""
    run = folder / f"original-{sync}"
    if not run.exists():
        words = ["--sync", sync, "--steps", "4", "--checkpoint-every", "2", "--momentum", "0.9", "--out", str(run)]
        assert command(["train", *FLAGS, *words], folder / "said").code == 0, (folder / "said").read_text()
    return run


@cache
def end_of(run: Path) -> str:
    whole = run.with_name(f"whole-{run.name}")
    shutil.copytree(run, whole)
    resumed = command(["resume", str(whole), "--steps", "6", "--quiet"], whole / "said")
    assert resumed.code == 0, resumed
    return sha(whole)


def sha(run: Path) -> str:
    try:
        return str(json.loads((run / "result.json").read_text())["params_sha256"])
    except OSError:
        return ""


# -- damage ------------------------------------------------------------------------------------------------------------
def flip(rng: random.Random, newest: Path) -> None:
    """One bit of one file."""
    path = rng.choice(sorted(newest.glob("worker-*")))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut_off(rng: random.Random, newest: Path) -> None:
    path = rng.choice(sorted(newest.iterdir()))
    os.truncate(path, rng.randrange(path.stat().st_size))


def removed(rng: random.Random, newest: Path) -> None:
    rng.choice(sorted(newest.iterdir())).unlink()


def zeroed(rng: random.Random, newest: Path) -> None:
    """As after a crash of the file system."""
    path = rng.choice(sorted(newest.iterdir()))
    path.write_bytes(bytes(path.stat().st_size))


def exchanged(rng: random.Random, newest: Path) -> None:
    """The files of two workers."""
    one, two = newest / "worker-0.pt", newest / "worker-1.pt"
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)


def from_another_step(rng: random.Random, newest: Path) -> None:
    name = f"worker-{rng.randrange(2)}.pt"
    shutil.copyfile(newest.with_name("step-2") / name, newest / name)


def not_a_file(rng: random.Random, newest: Path) -> None:
    path = rng.choice(sorted(newest.iterdir()))
    path.unlink()
    path.mkdir()


DAMAGE = (flip, flip, cut_off, removed, zeroed, exchanged, from_another_step, not_a_file)


def damaged(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """The newest checkpoint is refused, with the way out, and that way leads to the same bits."""
    folder.mkdir(parents=True, exist_ok=True)
    original, run = prepared(folder, sync), folder / f"run-{rng.random()}"
    shutil.copytree(original, run)
    damage = rng.choice(DAMAGE)
    damage(rng, run / "checkpoints" / "step-4")
    what = f"{sync}, {damage.__name__}"
    refused = command(["resume", str(run), "--steps", "6", "--quiet"], folder / "said")
    told = clear(refused) and refused.code == 4 and "--from 2" in refused.line
    sums.row("damaged checkpoints", "refused with the step before, exit code 4").count(told, f"{what}: {refused}")
    resumed = command(["resume", str(run), "--from", "2", "--steps", "6", "--quiet"], folder / "said")
    right = resumed.code == 0 and sha(run) == end_of(original)
    sums.row("runs with a damaged checkpoint", "resumed from the one before, to the same bits").count(
        right, f"{what}: {resumed}"
    )
    shutil.rmtree(run)


# -- other content with the right checksum -----------------------------------------------------------------------------
class Evil:
    """Unpickled, it would leave a file."""

    def __init__(self, witness: Path):
        self.witness = witness

    def __reduce__(self) -> Any:
        return Path.touch, (self.witness,)


ODD: dict[str, Callable[[Any], Any]] = {
    "a list": lambda value: [value],
    "None": lambda value: None,
    "a string": lambda value: "many",
    "an empty dict": lambda value: {},
    "a large number": lambda value: 10**30,
    "a negative number": lambda value: -1,
    "NaN": lambda value: float("nan"),
    "a long tensor": lambda value: torch.zeros(1000),
    "a scalar tensor": lambda value: torch.tensor(1.0),
    "whole numbers": lambda value: torch.ones(value.shape if isinstance(value, torch.Tensor) else 3, dtype=torch.int64),
    "deep nesting": lambda value: nested(200),
    "missing": lambda value: value,
}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every entry of a nested state."""
    keys: list[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, (list, tuple)) and len(value) < 10:
        keys = list(range(len(value)))
    return [(*path, key) for key in keys] + [p for key in keys for p in places(value[key], (*path, key))]


def changed(value: Any, path: tuple[Any, ...], kind: str) -> Any:
    """The state with one entry made odd."""
    if not path:
        return ODD[kind](value)
    key, *rest = path
    if isinstance(value, tuple):
        return tuple(changed(list(value), path, kind))
    copy = dict(value) if isinstance(value, dict) else list(value)
    if kind == "missing" and not rest:
        del copy[key]
    else:
        copy[key] = changed(value[key], tuple(rest), kind)
    return copy


def sign(checkpoint: Path) -> None:
    """Give every file the checksum that it has."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for row in manifest["files"]:
        data = (checkpoint / row["name"]).read_bytes()
        row |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    path.write_text(json.dumps(manifest))


def rewritten(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """One entry of one worker's state, or of the manifest, is something else."""
    folder.mkdir(parents=True, exist_ok=True)
    original, run = prepared(folder, sync), folder / f"run-{rng.random()}"
    shutil.copytree(original, run)
    newest, witness = available(run)[-1], folder / "witness"
    kind, name = rng.choice(list(ODD)), rng.choice(("worker-0.pt", "worker-1.pt", "manifest.json"))
    if rng.random() < 0.05:
        kind = "code"
    if kind == "code":
        name = "worker-0.pt"
        (newest / name).write_bytes(pickle.dumps({"model": Evil(witness)}))
        sign(newest)
        where: tuple[Any, ...] = ()
    elif name == "manifest.json":
        manifest = json.loads((newest / name).read_text())
        where = rng.choice(places(manifest))
        text = json.dumps(changed(manifest, where, kind), default=lambda tensor: tensor.tolist())
        (newest / name).write_text(text)
    else:
        state = torch.load(newest / name, weights_only=True)
        where = rng.choice(places(state))
        torch.save(changed(state, where, kind), newest / name)
        sign(newest)
    outcome = command(["resume", str(run), "--steps", "6", "--quiet"], folder / "said")
    # A value that fits cannot be told from a true one: then the run ends, or meets numbers that are not finite.
    goes_on = outcome.code == 0 or (outcome.code == 3 and " nan " in f"{outcome.line} ".lower())
    what = f"{sync}, {kind} in {name} at {'.'.join(map(str, where))}: {outcome}"
    row = sums.row("rewritten checkpoints, right checksum", "refused in a line, or trained on; no code in them runs")
    row.count((clear(outcome) or goes_on) and not witness.exists(), what)
    shutil.rmtree(run)
