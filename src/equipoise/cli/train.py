"""`equipoise train [RECIPE.toml] [flags]`"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.terminal import starting
from ..core.torchrun import rank
from .flags import add_recipe_flags, recipe_of
from .numbers import integer
from .parser import Parser

_EXAMPLES = """examples:
  equipoise train --data digits --workers 4 --epochs 5
  equipoise train --period 8 --partition dirichlet --partition.alpha 0.1
  equipoise train recipe.toml --workers 16 --virtual --out runs/sixteen
  equipoise train recipe.toml --dry-run
  equipoise train office --data my.package:load --model my.package:make
  torchrun --standalone --nproc-per-node 2 -m equipoise train --out runs/two
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise train [RECIPE.toml] [flags]", _EXAMPLES
    parser.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE.toml",
        help="recipe file, or the name of one that comes with Equipoise; flags override it",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved recipe and its communication cost, and stop"
    )
    parser.add_argument("--seeds", metavar="N", help="the same run with N seeds: mean and spread, as in compare")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_recipe_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = Recipe.load(arguments.recipe) if arguments.recipe is not None else Recipe()
    recipe = recipe_of(arguments, recipe)
    if arguments.dry_run:
        from .dry_run import forecast

        text = forecast(recipe)
        if rank() == 0:
            print(text)
        return 0
    starting(stem(recipe).name, quiet=arguments.quiet or rank() != 0)
    if arguments.seeds is not None:
        return several(recipe, integer("seeds", arguments.seeds), arguments.quiet)
    from .run_recipe import fresh

    return fresh(recipe, stem(recipe), quiet=arguments.quiet)


def several(recipe: Recipe, seeds: int, quiet: bool) -> int:
    """A comparison of the recipe with nothing but its seeds."""
    from ..compare.grid import Combination
    from ..compare.run import compare
    from .run_recipe import next_free

    out = recipe.settings.get("out")
    folder = Path(out) if out is not None else next_free(stem(recipe))
    return compare([Combination(stem(recipe).name, recipe.without("out"))], folder, seeds=seeds, quiet=quiet)


def stem(recipe: Recipe) -> Path:
    """Folder of runs of this recipe without --out; a number is appended."""
    data, sync = recipe.chosen("data").name, recipe.chosen("sync").name
    if data is None or sync is None:
        raise UserError("the recipe has no data or no sync: add --data NAME and --sync NAME")
    return Path("runs") / f"{data.rpartition(':')[2]}-{sync}"
