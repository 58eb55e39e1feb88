"""`equipoise demo`: the tour. A baseline, the five systems and all of them together, on four unequal workers."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from .parser import Parser

RECIPES = Path(__file__).parents[1] / "recipes"
_QUICK = {"until": "accuracy=0.85", "epochs": 10}

_WORDS = """Four workers of speeds 1, 1, 2 and 4 on slow links, simulated: every step and every message costs its workers the time that it
would take. They train a small network on bundled digits until it knows 95 of 100; which choice gets there first?"""


def configure(parser: Parser) -> None:
    parser.epilog = f"{_WORDS}\n\nWhat is compared is in {RECIPES.name}/demo*.toml of the package."
    parser.add_argument("--out", metavar="FOLDER", help="folder of the runs (default: runs/demo-N)")
    parser.add_argument("--quick", action="store_true", help="one seed and an easier target: a few seconds")
    parser.add_argument("--jobs", metavar="N", help="runs at a time (default: one for each core)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(arguments: argparse.Namespace) -> int:
    from ..compare.grid import Combination
    from ..compare.run import compare
    from ..config.recipe import Recipe
    from ..core.toml import read_toml
    from .compare import whole
    from .run_recipe import next_free

    jobs = whole(arguments.jobs, "jobs")
    base = Recipe.load(RECIPES / "demo.toml").merged({"cluster": str(RECIPES / "demo-cluster.toml")})
    if arguments.quick:
        base = base.merged(_QUICK)
    path = RECIPES / "demo-choices.toml"
    found = [Combination(name, base.merged(table, str(path))) for name, table in read_toml(path).items()]
    out = Path(arguments.out) if arguments.out is not None else next_free(Path("runs") / "demo")
    print(_WORDS.replace("95", "85") if arguments.quick else _WORDS, flush=True)
    code = compare(
        found,
        out,
        seeds=1 if arguments.quick else 2,
        jobs=jobs,
        quiet=arguments.quiet,
        title="Which choice is fastest on four unequal workers?",
    )
    if not code:
        print("\nnext: the same question for your own machines and data:")
        print(
            f"  equipoise compare --vary sync=all-reduce,d-psgd,lgrawa --cluster {shlex.quote(str(out / 'cluster.toml'))}"
        )
    return code
