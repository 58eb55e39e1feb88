"""`equipoise demo`: a first run that shows what there is, in half a minute and without a download."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ..recipe import Recipe
from .parser import Parser

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"


def configure(parser: Parser) -> None:
    parser.add_argument("--out", metavar="FOLDER", help="folder of the run (default: runs/demo-N)")


def run(arguments: argparse.Namespace) -> int:
    from .go import conclude, start

    recipe = Recipe.load(RECIPE)
    if arguments.out is not None:
        recipe = recipe.merged({"out": arguments.out}, "flags")
    print(
        "4 workers train a small network on bundled digits; they average their models every 4 steps.",
        flush=True,
    )
    done = start(recipe, Path("runs") / "demo")
    code = conclude(done)
    if code or done.folder is None:
        return code
    from ..report.page import write_page

    for path in write_page([done.folder]):
        print(f"written: {path}")
    print("next: the same, on data that is spread unevenly, with another page to compare:")
    print(f"  equipoise train {shlex.quote(str(done.folder / 'recipe.toml'))} --partition sorted --out runs/uneven")
    print("  equipoise report runs/uneven")
    return 0
