"""`equipoise doctor`: can this machine run Equipoise, and if not, what mends it?"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from .parser import Parser


class Finding(NamedTuple):
    what: str
    found: str
    problem: str = ""  # with the fix; empty where all is well


def configure(parser: Parser) -> None: ...


def run(arguments: argparse.Namespace) -> int:
    findings = examine()
    width = max(len(finding.what) for finding in findings) + 2
    for finding in findings:
        print(f"{finding.what:<{width}}{finding.found}")
    problems = [finding for finding in findings if finding.problem]
    for finding in problems:
        print(f"problem: {finding.what}: {finding.problem}")
    print(f"{len(problems)} problems" if problems else "all is well")
    return 2 if problems else 0


def examine() -> list[Finding]:
    """Everything that is looked at, in the order it is shown."""
    from .. import __version__

    checks: list[Callable[[], Finding]] = [_memory, _disk, _gpus, _gloo]
    return [
        Finding("equipoise", __version__),
        Finding("python", platform.python_version()),
        *(_package(name) for name in ("torch", "numpy", "rich", "scikit-learn")),
        *(_package(name, optional) for name, optional in (("matplotlib", "figures"), ("tensorboard", "--tensorboard"))),
        Finding("cores", str(os.cpu_count())),
        *(_tried(check) for check in checks),
    ]


def _package(name: str, optional: str | None = None) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        if optional is not None:
            return Finding(name, f"not installed (needed for {optional} only: pip install {name})")
        return Finding(name, "not installed", f"pip install {name}")


def _tried(check: Callable[[], Finding]) -> Finding:
    """A check that breaks is a finding of its own: this command must come to its end."""
    try:
        return check()
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else ""
        return Finding(check.__name__.strip("_"), "failed", f"{type(error).__name__}: {first}")


def _memory() -> Finding:
    pages, free, size = (os.sysconf(f"SC_{name}") for name in ("PHYS_PAGES", "AVPHYS_PAGES", "PAGE_SIZE"))
    return Finding("memory", f"{pages * size / 1e9:.1f} GB, {free * size / 1e9:.1f} GB free")


def _disk() -> Finding:
    here = os.getcwd()
    free = shutil.disk_usage(here).free
    words = f"{free / 1e9:.1f} GB free in {here}"
    try:
        with tempfile.TemporaryFile(dir=here):
            pass
    except OSError as error:
        return Finding(
            "disk", words, f"cannot write here ({error.strerror}): change the folder, or pass --out elsewhere"
        )
    return Finding("disk", words, "" if free > 1e8 else "less than 0.1 GB is free: checkpoints may not fit")


def _gpus() -> Finding:
    import torch

    return Finding("GPUs", str(torch.cuda.device_count()))


def _gloo() -> Finding:
    """Two forked processes add a number: what every run with processes rests on."""
    import torch

    from ..comm.base import Comm
    from ..launch.local import run_processes

    def work(comm: Comm) -> Any:
        return comm.sum(torch.tensor([float(comm.rank + 1)])).item()

    try:
        sums = run_processes(work, 2, timeout=30.0)
    except Exception as error:
        words = f"{str(error).splitlines()[0]}; use --virtual, or let processes connect to 127.0.0.1"
        return Finding("workers", "two processes could not talk to each other", words)
    fine = sums == [3.0, 3.0]
    return Finding("workers", "two processes talk over gloo", "" if fine else f"1 + 2 gave {sums}: reinstall torch")
