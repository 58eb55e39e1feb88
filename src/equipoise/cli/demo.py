"""`equipoise demo`: a baseline, single methods and all of them together, on four workers of different speeds."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from .parser import Parser

RECIPES = Path(__file__).parents[1] / "recipes"
_QUICK = {"until": "accuracy=0.85", "epochs": 10}

_NEEDS = ("sklearn", "numba", "plotly")
_DESCRIPTION = """Four simulated workers of speeds 1, 1, 2 and 4 on slow links: every step and every message takes
simulated time. They train a small network on the bundled digits until test accuracy reaches 95 %. Which choice
gets there first?"""


def configure(parser: Parser) -> None:
    parser.epilog = f"{_DESCRIPTION}\n\nThe choices are in {RECIPES.name}/demo*.toml inside the package."
    parser.add_argument("--out", metavar="FOLDER", help="folder of the runs (default: runs/demo-N)")
    parser.add_argument("--quick", action="store_true", help="one seed and an easier target: a few seconds")
    parser.add_argument("--jobs", metavar="N", help="runs in parallel (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(arguments: argparse.Namespace) -> int:
    from ..core.extras import require
    from ..core.terminal import say
    from .numbers import integer

    jobs = integer("jobs", arguments.jobs) if arguments.jobs is not None else None
    # Before anything large is imported, which takes longer than people like to look at an empty screen.
    say(_DESCRIPTION.replace("95", "85") if arguments.quick else _DESCRIPTION)
    for module in _NEEDS:  # a clear line now instead of failed rows later
        require(module, "demo", "equipoise demo")
    from ..compare.grid import Combination
    from ..compare.run import compare
    from ..config.recipe import Recipe
    from ..core.toml import read_toml
    from .run_recipe import next_free

    base = Recipe.load(RECIPES / "demo.toml").merged({"cluster": str(RECIPES / "demo-cluster.toml")})
    if arguments.quick:
        base = base.merged(_QUICK)
    path = RECIPES / "demo-choices.toml"
    choices = [Combination(name, base.merged(table, str(path))) for name, table in read_toml(path).items()]
    out = Path(arguments.out) if arguments.out is not None else next_free(Path("runs") / "demo")
    code = compare(
        choices,
        out,
        seeds=1 if arguments.quick else 2,
        jobs=jobs,
        quiet=arguments.quiet,
        title="Which choice is fastest on four unequal workers?",
    )
    if not code:
        cluster = shlex.quote(str(out / "cluster.toml"))
        say("\nnext: find the best choice for a cluster, your own model and data; it ends with a recipe that runs:")
        say(f"  equipoise plan --cluster {cluster} --until accuracy=0.9 --minutes 2")
    return code
