"""`equipoise cluster measure` and `equipoise cluster show FILE`."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.torchrun import rank
from ..loop.from_recipe import assemble
from .flags import add_recipe_flags, recipe_of
from .parser import Parser

if TYPE_CHECKING:
    from ..simulate.cluster import Cluster, Link

_EXAMPLES = """examples:
  equipoise cluster measure --workers 4 --out cluster.toml
  torchrun --nnodes 4 --nproc-per-node 1 ... -m equipoise cluster measure --data digits --model mlp --out cluster.toml
  equipoise cluster show cluster.toml
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise cluster measure [flags] | show FILE", _EXAMPLES
    parser.add_argument("action", choices=("measure", "show"), help="measure: rates of a step and links of every pair")
    parser.add_argument("file", nargs="?", metavar="FILE", help="show: the cluster file; measure: a recipe")
    add_recipe_flags(parser)
    for action in parser._actions:
        if action.dest == "out":
            action.metavar, action.help = "FILE", "where to write the cluster (default: cluster.toml)"


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "measure":
        return _measure(arguments)
    if arguments.file is None:
        raise UserError("which cluster? write equipoise cluster show FILE")
    from ..simulate.cluster import Cluster

    print(shown(Cluster.load(arguments.file)))
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    from .run_recipe import on_torchrun

    recipe = recipe_of(arguments, Recipe.load(arguments.file) if arguments.file is not None else Recipe())
    out = Path(recipe.settings.get("out") or "cluster.toml")
    if out.exists():
        raise UserError(f"{out} is there already: remove it, or choose another file with --out")
    recipe = on_torchrun(recipe)
    if recipe.settings.get("virtual") or recipe.settings.get("cluster"):
        raise UserError("virtual workers have nothing to measure: leave out --virtual and --cluster")
    cluster = measured(recipe)
    if rank() == 0:
        cluster.save(out)
        print(shown(cluster))
        print(f"{out}")
    return 0


def measured(recipe: Recipe) -> Cluster:
    """The cluster of the workers at hand: rates of the recipe's own step, links of every pair."""
    from ..comm.base import Comm
    from ..comm.measure_links import measure_links, summarised
    from ..launch.start import spawn
    from ..loop.speeds import job_rates
    from ..simulate.cluster import Cluster

    job, how = assemble(recipe)

    def work(comm: Comm) -> Cluster:
        rates = [float(f"{rate:.4g}") for rate in job_rates(job, comm)]
        link, between = summarised(measure_links(comm))
        return Cluster(rates, link, between)

    return spawn(work, how["workers"], timeout=how["timeout"])[0]


def shown(cluster: Cluster) -> str:
    """A summary for people."""
    from ..simulate.units import seconds

    rows = [("workers", f"{cluster.size}, of {len(set(cluster.rates))} speeds")]
    each = zip(
        cluster.rates,
        cluster.sites,
        cluster.jitter,  # type: ignore[arg-type]
        cluster.failures_per_hour,  # type: ignore[arg-type]
        cluster.repair,  # type: ignore[arg-type]
        strict=True,
    )
    first = 0
    for (rate, site, jitter, failures, repair), alike in itertools.groupby(each):
        last = first + len(list(alike)) - 1
        words = [f"{rate:,.6g} examples/s"]
        words += [f"site {site}"] if site else []
        words += [f"jitter {100 * jitter:.3g} %"] if jitter else []
        words += [f"{failures:.3g} failures/h of {seconds(repair)}"] if failures else []
        rows.append((f"  {first}" if first == last else f"  {first} to {last}", ", ".join(words)))
        first = last + 1
    if not (cluster.across and len(cluster.across) == len(set(cluster.sites)) * (len(set(cluster.sites)) + 1) // 2):
        rows.append(("links", link_words(cluster.link)))
    for (one, two), link in cluster.across.items():
        rows.append((f"  inside {one}" if one == two else f"  {one} to {two}", link_words(link)))
    for (a, b), link in cluster.between.items():
        rows.append((f"  {a} to {b}", link_words(link)))
    if cluster.size > 1:
        rows.append(("mean of 4 MB", f"{seconds(float(f'{cluster.mean(4_000_000):.3g}'))} over all workers"))
        fastest, slowest = max(cluster.rates), min(cluster.rates)
        if fastest > slowest:
            rows.append(
                ("waiting", f"{100 * (1 - slowest / fastest):.0f} % of the fastest's time if all take equal batches")
            )
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def link_words(link: Link) -> str:
    from ..simulate.units import bits, seconds

    bandwidth = bits(float(f"{link.bandwidth:.4g}")) if link.bandwidth < float("inf") else "no limit"
    return f"{bandwidth}, {seconds(link.latency)}{', one line for all' if link.shared else ''}"
