"""`equipoise compare [RECIPE.toml...] [--vary ...] [flags]`"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import UserError
from ..core.terminal import starting
from .flags import add_recipe_flags, table_of
from .numbers import integer
from .parser import Parser

_DESCRIPTION = """Runs each recipe, or each combination of --vary values on top of the flags of `equipoise train`, with
several seeds. Prints which choice wins and why. Choices are ranked by time to the target: simulated seconds on a
described cluster, wall-clock seconds with --processes. The first choice is the baseline. Finished runs are not
repeated: the same command with the same --out continues a comparison that was stopped.

examples:
  equipoise compare --vary sync=all-reduce,d-psgd,detag:rounds=4 --until accuracy=0.9 --cluster cluster.toml
  equipoise compare --vary sync=periodic-average,lgrawa:pull=0.5 --vary period=4,16 --seeds 5 --until loss=0.3
  equipoise compare --vary period=1,8 --vary lr=0.1,0.4 --list --until accuracy=0.9
  equipoise compare mine.toml theirs.toml --processes --workers 2 --out runs/ours
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise compare [RECIPE.toml...] [--vary KEY=VALUE,VALUE...] [flags]", _DESCRIPTION
    parser.add_argument("recipes", nargs="*", metavar="RECIPE.toml", help="recipe files; flags override them")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="an axis, an option (sync.pull) or a setting, and its values (options follow colons); repeatable",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="pair the values of several --vary one by one instead of forming the full grid",
    )
    parser.add_argument("--seeds", default="3", metavar="N", help="seeds per choice (default: 3)")
    parser.add_argument("--jobs", metavar="N", help="runs in parallel (default: as many as the cores allow)")
    parser.add_argument(
        "--processes", action="store_true", help="workers are real processes; choices are ranked by wall-clock time"
    )
    parser.add_argument(
        "--rank-by",
        default="time",
        metavar="WHAT",
        help="time: to the target (default); goodput: examples per second that count, whatever fails meanwhile",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_recipe_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from ..compare.grid import combinations

    flags = table_of(arguments)
    out = flags.pop("out", None)
    if arguments.processes:
        if "cluster" in flags:
            raise UserError("--processes measures wall-clock time and --cluster simulates time: choose one")
        flags["virtual"] = False
    elif "virtual" not in flags:
        flags["virtual"] = True
    if not arguments.recipes and not arguments.vary:
        raise UserError("nothing to compare: give recipe files, or --vary sync=all-reduce,d-psgd")
    chosen = combinations(arguments.recipes, arguments.vary, flags, listed=arguments.list)
    seeds = integer("seeds", arguments.seeds)
    jobs = integer("jobs", arguments.jobs) if arguments.jobs is not None else None
    starting(f"{len(chosen)} choices, {seeds} seed{'s' if seeds > 1 else ''} each", quiet=arguments.quiet)
    from ..compare.run import compare
    from .run_recipe import next_free

    folder = Path(out) if out is not None else next_free(Path("runs") / "compare")
    return compare(chosen, folder, seeds=seeds, jobs=jobs, quiet=arguments.quiet, by=arguments.rank_by)
