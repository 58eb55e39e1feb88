"""A full disk and a folder that becomes read-only: said in a line, the last checkpoint stays, and the run goes on later.

Disks are small file systems in memory, mounted in a mount namespace of one process: nobody else sees them, and they end
with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
from pathlib import Path

from . import story
from .count import Sums
from .kills import RESUMED, check_checkpoints, check_history, one_life
from .victim import Outcome, Victim, patient, until

NEW_MOUNTS, PRIVATE, RECURSIVE, BIND, REMOUNT, READ_ONLY, DETACH = 0x20000, 1 << 18, 1 << 14, 1 << 12, 1 << 5, 1, 2
SIZE = 2 << 20  # bytes; a checkpoint here has about 60 kB


def possible() -> bool:
    """May this process make mount namespaces?"""
    return Victim(lambda: mount_disk(Path("/tmp"))).wait(20).code == 0


def mount_disk(folder: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _called(libc.unshare(NEW_MOUNTS))
    _called(libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None))
    _called(libc.mount(b"chaos", bytes(folder), b"tmpfs", 0, f"size={SIZE}".encode()))


def set_read_only(folder: Path, read_only: bool) -> None:
    """By a view of the folder over itself. A file that is open for writing stays so: the log of events."""
    libc = ctypes.CDLL(None, use_errno=True)
    if read_only:
        _called(libc.mount(bytes(folder), bytes(folder), None, BIND, None))
        until(
            lambda: not libc.mount(None, bytes(folder), None, BIND | REMOUNT | READ_ONLY, None), 5.0
        )  # while none writes
    else:
        _called(libc.umount2(bytes(folder), DETACH))


def _called(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def faulty_disk(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """One of the two, by the seed."""
    folder.mkdir(parents=True)
    disk = folder / "disk"
    disk.mkdir()
    full, free, step = rng.random() < 0.6, rng.choice((0, 4096, 200_000)), rng.randint(1, 24)
    free = rng.randint(0, free)
    journal = story.Journal(folder / "journal")

    def story_on_the_disk() -> tuple[Outcome, Outcome, Sums]:
        mount_disk(disk)
        counted, run = Sums(), disk / "run"
        victim = Victim(lambda: one_life(run, sync, journal, False, None, {"timeout": patient(20.0)}), folder / "said")
        until(lambda: journal.step(0) >= step or victim.ended())
        fill(disk / "filler", free) if full else set_read_only(run, True)
        first = victim.wait(60)
        (disk / "filler").unlink() if full else set_read_only(run, False)
        start = story.resume_point(run)
        check_checkpoints(run, f"{sync}, disk", counted, at_least=0)
        journal.life = 1
        if not start:
            (run / "events.jsonl").unlink()
        again = Victim(lambda: one_life(run, sync, journal, bool(start), None, {}), folder / "said").wait(120)
        check_history(run, journal.agreed({0: 0, 1: start}), f"{sync}, disk", counted)
        return first, again, counted

    outcome = Victim(story_on_the_disk, folder / "said").wait(200)
    fault = "full disks" if full else "folders that become read-only"
    what = f"{sync}, {fault}, {free} bytes at step {step}"
    if outcome.value is None:
        sums.row(fault, "one clear line").count(False, f"{what}: {outcome}")
        return
    first, again, counted = outcome.value
    if first.code == 0:
        return  # it had ended before
    reason = "No space left on device" if full else "Read-only file system"
    clear = reason in first.line and first.code in (2, 4) and "cannot write" in first.line
    sums.row(fault, "one clear line with the reason, exit code 2 or 4").count(clear, f"{what}: {first}")
    sums.merge(counted)
    right = again.value == (story.undisturbed(sync), 0)
    sums.row(f"runs on {fault}", RESUMED).count(right, f"{what}: {again}")


def fill(path: Path, free: int) -> None:
    """Take all of the disk but `free` bytes."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    os.truncate(path, max(0, path.stat().st_size - free))
