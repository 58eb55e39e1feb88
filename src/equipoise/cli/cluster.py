"""`equipoise cluster measure` and `equipoise cluster show FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import shipped
from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.terminal import say, starting
from ..core.torchrun import rank
from ..loop.from_recipe import assemble, factors
from ..simulate.describe import describe
from .columns import columns
from .flags import add_recipe_flags, recipe_of
from .parser import Parser

if TYPE_CHECKING:
    from ..loop.speeds import Rate
    from ..simulate.cluster import Cluster

_SECONDS = 0.1  # of one timing at least: shorter ones measure who else is running
_ATTEMPTS = 3
_UNSTEADY = 0.2  # spread of repetitions that is worth another attempt, and a warning
_NONSENSE = 0.6  # spread with which nothing is written

_EXAMPLES = """examples:
  equipoise cluster measure --workers 4 --out cluster.toml
  torchrun --nnodes 4 --nproc-per-node 1 ... -m equipoise cluster measure --data digits --model mlp --out cluster.toml
  equipoise cluster show cluster.toml
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise cluster measure [flags] | show FILE", _EXAMPLES
    parser.add_argument(
        "action",
        choices=("measure", "show"),
        help="measure: throughput of every worker and link of every pair; show: print a cluster file",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="show: the cluster file; measure: a recipe")
    add_recipe_flags(parser)
    for action in parser._actions:
        if action.dest == "out":
            action.metavar, action.help = "FILE", "where to write the cluster (default: cluster.toml)"


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "measure":
        return _measure(arguments)
    if arguments.file is None:
        raise UserError("no cluster file given: write equipoise cluster show FILE")
    from ..simulate.cluster import Cluster

    say(columns(describe(Cluster.load(shipped.find("cluster", arguments.file)))))
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    from .run_recipe import on_torchrun

    recipe = recipe_of(arguments, Recipe.load(arguments.file) if arguments.file is not None else Recipe())
    out = Path(recipe.settings.get("out") or "cluster.toml")
    if out.exists():
        raise UserError(f"{out} exists already: remove it, or choose another file with --out")
    recipe = on_torchrun(recipe)
    if recipe.settings.get("virtual") or recipe.settings.get("cluster"):
        raise UserError("only real processes can be measured: leave out --virtual and --cluster")
    starting("throughput of every worker, then every link", quiet=rank() != 0)
    cluster, rates = measure(recipe)
    slow = recipe.settings.get("slow")
    problem = doubtful(rates, factors(str(slow)) if slow is not None else None)
    if rank() == 0:
        spreads = ", ".join(f"{100 * r.spread:.0f} %" for r in rates)
        print(f"spread of the repetitions, by worker: {spreads}", file=sys.stderr)
    if problem:
        raise UserError(f"{problem}: nothing is written; measure again when the machines have nothing else to do")
    if rank() == 0:
        if unsteadiness(rates) > _UNSTEADY:
            print(
                "warning: the machines are busy with something else, which these rates and links contain",
                file=sys.stderr,
            )
        cluster.save(out)
        say(columns(describe(cluster)))
        print(f"{out}")
    return 0


def doubtful(rates: list[Rate], slow: list[float] | None) -> str:
    """What makes these rates nonsense; empty if nothing does. `slow`: factors that were declared on equal machines."""
    shown = ", ".join(f"{r.median:.4g}" for r in rates)
    if unsteadiness(rates) > _NONSENSE:
        worst = max(rates, key=lambda r: r.spread)
        return f"the rates {shown} say little: half of the repetitions of a worker are {100 * worst.spread:.0f} % apart"
    if slow is not None and len(slow) == len(rates):
        equal = [r.median * factor for r, factor in zip(rates, slow, strict=True)]
        if max(equal) > 2.0 * min(equal):
            return f"the rates {shown} contradict slow = {slow}"
    return ""


def measure(recipe: Recipe) -> tuple[Cluster, list[Rate]]:
    """The cluster these workers form: throughput of each on the recipe's step, and the link of every pair.

    Throughputs are measured several times, and the calmest measurement counts. They come with their spread.
    """
    from ..comm.base import Comm
    from ..comm.measure_links import measure_links, summarised
    from ..launch.start import spawn
    from ..loop.speeds import Timing, repeated_job_rates
    from ..simulate.cluster import Cluster

    job, how = assemble(recipe)

    def work(comm: Comm) -> tuple[Cluster, list[Rate]]:
        attempts: list[list[Rate]] = []
        while len(attempts) < _ATTEMPTS and (not attempts or unsteadiness(attempts[-1]) > _UNSTEADY):
            attempts.append(repeated_job_rates(job, comm, Timing(repetitions=7, seconds=_SECONDS)))
        rates = min(attempts, key=unsteadiness)
        link, between = summarised(measure_links(comm))
        return Cluster([float(f"{rate.median:.4g}") for rate in rates], link, between), rates

    measured: list[tuple[Cluster, list[Rate]]] = spawn(work, how["workers"], timeout=how["timeout"])
    return measured[0]


def unsteadiness(rates: list[Rate]) -> float:
    return max(rate.spread for rate in rates)
