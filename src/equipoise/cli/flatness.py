"""`equipoise flatness RUN`: how flat the loss is around the trained model of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.literal import literal
from ..core.errors import CheckpointError, UserError
from ..core.terminal import say
from ..loop.from_recipe import assemble
from .columns import columns
from .numbers import integer
from .parser import Parser
from .run_folders import one_run

if TYPE_CHECKING:
    from torch import nn

    from ..loop.job import Job

_DESCRIPTION = """The model of the newest checkpoint is measured in eval mode on a fixed sample of examples. BatchNorm
statistics are recomputed on the training data if the run uses --buffers recompute; otherwise they are the mean over
workers. Numbers are written to RUN/flatness.json, the loss along random directions to RUN/flatness.png, which needs
matplotlib.

examples:
  equipoise flatness runs/demo-1
  equipoise flatness runs/cifar10-lgrawa-1 --of centre --examples 4096 --probes 100
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise flatness RUN [flags]", _DESCRIPTION
    parser.add_argument("run", metavar="RUN", help="folder of a run with a checkpoint")
    parser.add_argument("--of", default="mean", metavar="mean|centre", help="which model (default: mean)")
    parser.add_argument("--on", default="train", metavar="train|test", help="which data (default: train)")
    for flag, default, text in (
        ("--examples", "1024", "size of the sample"),
        ("--probes", "30", "random vectors for the estimate of the trace"),
        ("--most", "40", "Hessian-vector products for the largest eigenvalue, at most"),
        ("--directions", "5", "random directions along which the loss is plotted"),
        ("--seed", "0", "seed of the sample, the random vectors and the directions"),
    ):
        parser.add_argument(flag, default=default, metavar="N", help=f"{text} (default: {default})")
    parser.add_argument(
        "--radius", default="0.5", metavar="X", help="largest distance along a direction (default: 0.5)"
    )


def run(arguments: argparse.Namespace) -> int:
    numbers = {
        name: integer(name, getattr(arguments, name), least=0 if name == "seed" else 1)
        for name in ("examples", "probes", "most", "directions", "seed")
    }
    radius = literal(arguments.radius)
    if not isinstance(radius, (int, float)) or isinstance(radius, bool) or not radius > 0:
        raise UserError(f"--radius {arguments.radius}: takes a number above zero")
    for flag, known in (("of", ("mean", "centre")), ("on", ("train", "test"))):
        if getattr(arguments, flag) not in known:
            raise UserError(f"--{flag} {getattr(arguments, flag)}: takes {' or '.join(known)}")
    from ..flatness import measure
    from ..flatness.profile import draw
    from ..report.figures import available
    from .resume import read

    folder = one_run(arguments.run)
    job, _ = assemble(read(folder))
    model, step, statistics = load(job, folder, arguments.of)
    source = job.train if arguments.on == "train" or job.test is None else job.test
    flatness = measure(model, job.loss, source, **numbers, radius=float(radius))
    rows = [
        ("model", f"{arguments.of} of step {step}; BatchNorm: {statistics}"),
        ("data", f"{arguments.on}, eval mode"),
        *flatness.rows(),
    ]
    header = {"run": str(folder), "step": step, "model": arguments.of, "data": arguments.on, "statistics": statistics}
    written = [folder / "flatness.json"]
    try:
        written[0].write_text(json.dumps(header | flatness.plain(), indent=1) + "\n")
        if available():
            written.append(folder / "flatness.png")
            draw({f"{arguments.of}, {arguments.on} data": flatness.profile}, written[1])
    except OSError as error:
        raise UserError(f"cannot write {written[-1]}: {error.strerror}") from None
    say(columns(rows))
    print("\n".join(f"written: {path}" for path in written))
    return 0


def load(job: Job, folder: Path, of: str) -> tuple[nn.Module, int, str]:
    """The mean or centre model of the newest checkpoint, its step, and where its BatchNorm statistics come from."""
    import numpy as np
    import torch

    from ..checkpoint.reshard import mean
    from ..checkpoint.store import choose, read_manifest, read_worker
    from ..core.vector import Buffers, Flat
    from ..loop.evaluate import recompute_statistics

    path = choose(folder)
    manifest = read_manifest(path)
    states: list[dict[str, Any]] = [read_worker(path, manifest, rank) for rank in range(manifest["workers"])]
    model = job.model()
    model.load_state_dict(mean([state["model"] for state in states]))
    if of == "centre":
        centre = states[0]["sync"].get(job.sync.centre_state)
        if centre is None:
            raise CheckpointError(f"{folder}: its sync has no centre model: use --of mean")
        flat = Flat(model)
        flat.x.copy_(centre)
        flat.scatter()
    statistics = "none" if not len(Buffers(model)) else "mean over workers"
    if len(Buffers(model)) and job.buffers == "recompute":
        recompute_statistics(model, job.train, np.arange(len(job.train)), torch.device("cpu"))
        statistics = "recomputed on the training data"
    return model, manifest["step"], statistics
