"""`equipoise compare [RECIPE.toml...] [--vary ...] [flags]`"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.literal import literal
from ..core.errors import UserError
from .flags import add_recipe_flags, table_of
from .parser import Parser

_WORDS = """Runs recipes, or what is varied on top of the flags of `equipoise train`, each with several seeds, and says what wins and
why. Ranked by time to the target: simulated seconds on a described cluster, real ones with --processes. The first choice is the
one that the others are measured by. Runs that are done are not repeated: the same command with the same --out goes on.

examples:
  equipoise compare --vary sync=all-reduce,d-psgd,detag:rounds=4 --until accuracy=0.9 --cluster cluster.toml
  equipoise compare --vary sync=periodic-average,lgrawa:pull=0.5 --vary period=4,16 --seeds 5 --until loss=0.3
  equipoise compare --vary period=1,8 --vary lr=0.1,0.4 --list --until accuracy=0.9
  equipoise compare mine.toml theirs.toml --processes --workers 2 --out runs/ours
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise compare [RECIPE.toml...] [--vary KEY=VALUE,VALUE...] [flags]", _WORDS
    parser.add_argument("recipes", nargs="*", metavar="RECIPE.toml", help="recipe files; flags win over what they say")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="an axis, its option (sync.pull) or a setting and its values; may be repeated; options behind colons",
    )
    parser.add_argument("--list", action="store_true", help="pair the values of several --vary instead of all with all")
    parser.add_argument("--seeds", default="3", metavar="N", help="runs of each choice (default: 3)")
    parser.add_argument("--jobs", metavar="N", help="runs at a time (default: as many as there are cores for)")
    parser.add_argument("--processes", action="store_true", help="workers are processes and time is real")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_recipe_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from ..compare.grid import combinations

    flags = table_of(arguments)
    out = flags.pop("out", None)
    if arguments.processes:
        if "cluster" in flags:
            raise UserError("--processes takes real time and --cluster simulated time: choose one")
        flags["virtual"] = False
    elif "virtual" not in flags:
        flags["virtual"] = True
    if not arguments.recipes and not arguments.vary:
        raise UserError("nothing to compare: give recipe files, or --vary sync=all-reduce,d-psgd")
    found = combinations(arguments.recipes, arguments.vary, flags, listed=arguments.list)
    seeds, jobs = (whole(getattr(arguments, name), name) for name in ("seeds", "jobs"))
    from ..compare.run import compare
    from .run_recipe import next_free

    folder = Path(out) if out is not None else next_free(Path("runs") / "compare")
    return compare(found, folder, seeds=seeds or 1, jobs=jobs, quiet=arguments.quiet)


def whole(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    value = literal(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"--{name} {text}: takes a whole number of at least 1")
    return value
