"""`equipoise plan --cluster FILE --until accuracy=0.9 [flags]`"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.terminal import starting
from .flags import add_recipe_flags, recipe_of
from .numbers import integer
from .parser import Parser

_EXAMPLES = """Searches sync, period, wire, topology, batch, order, partition and learning rate on virtual workers of
the cluster file, and writes a recipe for the real ones. A choice that you give, such as --sync diloco or --lr 0.1, is
kept.
The same command with the same --out continues a search that was stopped.

examples:
  equipoise plan --cluster cluster.toml --data digits --until accuracy=0.9 --minutes 2
  equipoise plan --cluster cluster.toml --data my.package:load --model my.package:make --until loss=0.3
  equipoise plan --cluster cluster.toml --until accuracy=0.9 --minimise bytes
  equipoise plan --cluster cluster.toml --within '5 USD' --price 0.4
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise plan [RECIPE.toml] --cluster FILE --until METRIC=X [flags]", _EXAMPLES
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="what is fixed already; flags override it")
    parser.add_argument("--minutes", default="10", metavar="M", help="real minutes that the search may take (10)")
    parser.add_argument(
        "--minimise", default="time", metavar="WHAT", help="time or bytes to the target (default: time)"
    )
    parser.add_argument(
        "--within",
        metavar="LIMIT",
        help="instead of --until: the best model within a time, such as "
        "'10 min' on the cluster, bytes ('2 GB'), or money ('5 USD', with --price)",
    )
    parser.add_argument("--price", metavar="P", help="of one worker for an hour: the answer then has the cost")
    parser.add_argument("--seeds", default="3", metavar="N", help="seeds of the finals (default: 3)")
    parser.add_argument("--jobs", metavar="N", help="runs in parallel (default: as many as the cores allow)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_recipe_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = Recipe.load(arguments.recipe) if arguments.recipe is not None else Recipe()
    recipe = recipe_of(arguments, recipe)
    if "cluster" not in recipe.settings:
        raise UserError(
            "describe your machines: --cluster FILE; equipoise cluster measure writes such a file, docs/clusters.md "
            "shows how to write one by hand"
        )
    recipe = recipe.merged({"cluster": recipe.plain()["cluster"]})
    if "budget" in recipe.settings:
        raise UserError(
            "--budget: the search sets it; use --within for a limit of the answer, --minutes for the search"
        )
    minutes, price = (_number(name, getattr(arguments, name)) for name in ("minutes", "price"))
    assert minutes is not None
    starting(f"a search of at most {minutes:g} minutes", quiet=arguments.quiet)
    from ..search.search import plan

    out = recipe.settings.get("out")
    from .run_recipe import next_free

    folder = Path(out) if out is not None else next_free(Path("runs") / "plan")
    code, paths = plan(
        recipe.without("out"),
        folder,
        minutes=minutes,
        minimise=arguments.minimise,
        within=arguments.within,
        price=price,
        seeds=integer("seeds", arguments.seeds),
        jobs=integer("jobs", arguments.jobs) if arguments.jobs is not None else None,
        quiet=arguments.quiet,
    )
    if code:
        print(f"stopped; to continue, repeat the command with --out {shlex.quote(str(folder))}", file=sys.stderr)
        return code
    print("\n".join(f"written: {path}" for path in paths), flush=True)
    return 0


def _number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UserError(f"--{name} {text}: takes a number above zero")
    return value
