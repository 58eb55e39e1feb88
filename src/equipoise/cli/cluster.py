"""`equipoise cluster measure` and `equipoise cluster show FILE`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..config import shipped
from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.terminal import say, starting
from ..core.torchrun import rank
from ..loop.from_recipe import assemble, factors
from ..simulate.describe import describe, describe_link
from .columns import columns
from .flags import add_recipe_flags, recipe_of
from .parser import Parser

if TYPE_CHECKING:
    from ..comm.measure_links import MeasuredLink
    from ..loop.speeds import Rate
    from ..simulate.cluster import Cluster

    Links = dict[tuple[int, int], MeasuredLink]

Measured = TypeVar("Measured")

_SECONDS = 0.1  # of one timing at least: shorter ones measure who else is running
_REPETITIONS = 7
_ATTEMPTS = 3
_UNSTEADY = 0.2  # spread of repetitions that is worth another attempt, and a warning
_NONSENSE = 0.6  # spread with which nothing is written
_AGREEMENT = 1.25  # factor by which rates may differ from --slow without a word
_CONTRADICTION = 2.0  # and with which nothing is written: workers that share processors do not slow down as declared

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
    cluster, rates, links = measure(recipe)
    slow = recipe.settings.get("slow")
    declared = factors(str(slow)) if slow is not None else None
    problem = doubtful(rates, links, declared)
    if rank() == 0:
        spreads = ", ".join(f"{100 * r.spread:.0f} %" for r in rates)
        widest = f"; of the links: up to {100 * unsteadiness([*links.values()]):.0f} %" if links else ""
        print(f"spread of the repetitions, by worker: {spreads}{widest}", file=sys.stderr)
    if problem:
        raise UserError(f"{problem}: nothing is written; measure again when the machines have nothing else to do")
    if rank() == 0:
        for worry in worries(rates, links, declared):
            print(f"warning: {worry}", file=sys.stderr)
        cluster.save(out)
        say(columns(describe(cluster)))
        print(f"{out}")
    return 0


def doubtful(rates: list[Rate], links: Links, slow: list[float] | None) -> str:
    """What makes these measurements nonsense; empty if nothing does. `slow`: factors declared on equal machines."""
    shown = _shown(rates)
    if not all(math.isfinite(r.median) and r.median > 0 for r in rates):
        return f"the rates {shown} are no rates"
    if unsteadiness(rates) > _NONSENSE:
        worst = max(rates, key=lambda r: r.spread)
        return f"the rates {shown} say little: half of the repetitions of a worker are {100 * worst.spread:.0f} % apart"
    for (one, two), (link, spread) in links.items():
        if not (math.isfinite(link.bandwidth) and math.isfinite(link.latency) and math.isfinite(spread)):
            return f"the link of workers {one} and {two} took no time, or no end"
        if spread > _NONSENSE:
            about = f"{describe_link(link)}, says little: half of its repetitions are {100 * spread:.0f} % apart"
            return f"the link of workers {one} and {two}, {about}"
    if contradiction(rates, slow) > _CONTRADICTION:
        return f"the rates {shown} contradict slow = {slow}"
    return ""


def worries(rates: list[Rate], links: Links, slow: list[float] | None) -> list[str]:
    """What one should know of measurements that are written all the same."""
    found = []
    if unsteadiness([*rates, *links.values()]) > _UNSTEADY:
        found.append("the machines are busy with something else, which these rates and links contain")
    if contradiction(rates, slow) > _AGREEMENT:
        found.append(f"slow = {slow} was declared, and the rates {_shown(rates)} were measured")
    return found


def contradiction(rates: list[Rate], slow: list[float] | None) -> float:
    """By what factor the speeds of equal machines differ once what was declared is taken off."""
    if slow is None or len(slow) != len(rates):
        return 1.0
    equal = [rate.median * factor for rate, factor in zip(rates, slow, strict=True)]
    return max(equal) / min(equal)


def _shown(rates: list[Rate]) -> str:
    return ", ".join(f"{r.median:.6g}" for r in rates)


def measure(recipe: Recipe) -> tuple[Cluster, list[Rate], Links]:
    """The cluster these workers form: throughput of each on the recipe's step, and the link of every pair.

    Each kind is measured several times, and the calmest measurement counts. They come with their spread.
    """
    from ..comm.base import Comm
    from ..comm.measure_links import measure_links, summarised
    from ..launch.start import spawn
    from ..loop.speeds import Timing, repeated_job_rates
    from ..simulate.cluster import Cluster

    job, how = assemble(recipe)

    def work(comm: Comm) -> tuple[Cluster, list[Rate], Links]:
        timing = Timing(repetitions=_REPETITIONS, seconds=_SECONDS)
        rates = calmest(lambda: repeated_job_rates(job, comm, timing), lambda rates: rates)
        links = calmest(lambda: measure_links(comm, _REPETITIONS), lambda links: [*links.values()])
        link, between = summarised({pair: measured.link for pair, measured in links.items()})
        return Cluster([float(f"{rate.median:.4g}") for rate in rates], link, between), rates, links

    measured: list[tuple[Cluster, list[Rate], Links]] = spawn(work, how["workers"], timeout=how["timeout"])
    return measured[0]


def calmest(measure: Callable[[], Measured], spreads: Callable[[Measured], Sequence[Rate | MeasuredLink]]) -> Measured:
    """The steadiest of several attempts, or the first one that is steady enough."""
    attempts: list[Measured] = []
    while len(attempts) < _ATTEMPTS and (not attempts or unsteadiness(spreads(attempts[-1])) > _UNSTEADY):
        attempts.append(measure())
    return min(attempts, key=lambda attempt: unsteadiness(spreads(attempt)))


def unsteadiness(measured: Sequence[Rate | MeasuredLink]) -> float:
    return max((each.spread for each in measured), default=0.0)
