"""`equipoise doctor`: check whether this machine can run Equipoise, and say how to fix what is missing."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ..core.terminal import say
from .columns import columns
from .parser import Parser

_OPTIONAL = (
    ("plotly", "pages", "curves on report pages"),
    ("scikit-learn", "digits", "the bundled digits"),
    ("numba", "partition", "submodular partitions"),
    ("matplotlib", "plot", "pictures"),
    ("pillow", "images", "CIFAR-10 images"),
    ("tensorboard", "tensorboard", "TensorBoard logs"),
    ("wandb", "wandb", "Weights & Biases logs"),
    ("mlflow", "mlflow", "MLflow logs"),
    ("transformers", "hf", "Hugging Face Trainer"),
    ("accelerate", "accelerate", "loops with Accelerate"),
)


class Finding(NamedTuple):
    check: str
    status: str
    problem: str = ""  # what is wrong and how to fix it; empty if nothing is


def configure(parser: Parser) -> None:
    from ..launch.hosts import SSH

    parser.add_argument("--hosts", metavar="FILE", help="check these hosts instead: ssh, versions, clocks, connections")
    parser.add_argument("--ssh", default=SSH, metavar="COMMAND", help=f"how to reach a host ({SSH})")
    parser.add_argument("--python", default="python3", help="the interpreter on every host (python3)")
    parser.add_argument("--probe", action="store_true", help="answer the questions of another host, over a pipe")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="train there too, resume, and compare with the CPU: cuda, mps, xpu, auto, or cpu to see what is done",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.probe:
        from ..launch.host_probe import serve

        return serve()
    if arguments.hosts is not None:
        from ..launch.hosts import read_hosts
        from .doctor_hosts import examine_hosts

        findings = examine_hosts(read_hosts(Path(arguments.hosts)), arguments.ssh, arguments.python)
    else:
        findings = examine() if arguments.device is None else _on_device(arguments.device)
    say(columns([(finding.check, finding.status) for finding in findings]))
    problems = [finding for finding in findings if finding.problem]
    for finding in problems:
        say(f"problem: {finding.check}: {finding.problem}")
    print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}" if problems else "no problems")
    return 2 if problems else 0


def examine() -> list[Finding]:
    """All checks, in the order they are printed."""
    from .. import __version__

    checks: list[Callable[[], Finding]] = [_memory, _disk, _gpus, _gloo]
    return [
        Finding("equipoise", __version__),
        Finding("python", platform.python_version()),
        *(_required(name) for name in ("torch", "numpy", "rich", "tomli-w")),
        *(_optional(name, extra, purpose) for name, extra, purpose in _OPTIONAL),
        Finding("cores", str(os.cpu_count())),
        *(_guarded(check) for check in checks),
    ]


def _on_device(name: str) -> list[Finding]:
    from ..core.device import chosen_device
    from .device_check import check_device, describe_device

    device = chosen_device(name)
    checks = [*describe_device(device), *check_device(device)]
    return [Finding(*check) for check in checks]


def _required(name: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "not installed", f"pip install {name}")


def _optional(name: str, extra: str, purpose: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, f"not installed; {purpose} need it: pip install 'equipoise[{extra}]'")


def _guarded(check: Callable[[], Finding]) -> Finding:
    """A check that raises becomes a finding, so that the remaining checks still run."""
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
    status = f"{free / 1e9:.1f} GB free in {here}"
    try:
        with tempfile.TemporaryFile(dir=here):
            pass
    except OSError as error:
        problem = f"cannot write here ({error.strerror}): change to another folder, or pass --out"
        return Finding("disk", status, problem)
    return Finding("disk", status, "" if free > 1e8 else "less than 0.1 GB is free: checkpoints may not fit")


def _gpus() -> Finding:
    import torch

    return Finding("GPUs", str(torch.cuda.device_count()))


def _gloo() -> Finding:
    """All-reduce between two forked processes, which every run on processes needs."""
    import torch

    from ..comm.base import Comm
    from ..launch.local import run_processes

    def work(comm: Comm) -> Any:
        return comm.sum(torch.tensor([float(comm.rank + 1)])).item()

    try:
        sums = run_processes(work, 2, timeout=30.0)
    except Exception as error:
        problem = f"{str(error).splitlines()[0]}; use --virtual, or allow processes to connect to 127.0.0.1"
        return Finding("gloo", "two processes cannot communicate", problem)
    correct = sums == [3.0, 3.0]
    status = "all-reduce between two processes works" if correct else "all-reduce between two processes is wrong"
    return Finding("gloo", status, "" if correct else f"1 + 2 gave {sums}: reinstall torch")
