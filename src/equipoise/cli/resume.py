"""`equipoise resume RUN`"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from ..config.literal import literal
from ..config.recipe import Recipe
from ..config.settings import LENGTHS
from ..core.errors import UserError
from ..core.terminal import say
from ..core.torchrun import rank
from ..observe.result_file import read_result
from .flags import add_recipe_flags, table_of
from .parser import Parser
from .run_folders import one_run
from .summary import epochs

_DESCRIPTION = """Every flag of `equipoise train` is accepted, but only what does not change the method may differ from
the run: its length, the number and kind of workers, and how often it logs, evaluates and saves checkpoints. A length
given here replaces all lengths of the run.

examples:
  equipoise resume runs/demo-1 --epochs 40
  equipoise resume runs/digits-all-reduce-3 --workers 2
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise resume RUN [--from STEP] [flags]", _DESCRIPTION
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--from", dest="step", metavar="STEP", help="start from the checkpoint of this step (default: the newest)"
    )
    parser.add_argument(
        "--without-missing",
        action="store_true",
        help="go on where the checkpoint files of a host are lost: without its workers' models, with all examples",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_recipe_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from ..checkpoint.match import refuse_mismatch

    folder = one_run(arguments.run)
    stored = read(folder)
    if not arguments.quiet and rank() == 0 and sys.stderr.isatty():
        # Torch is imported next, which takes longer than people like to look at an empty screen.
        print(f"resuming: {folder}", file=sys.stderr, flush=True)
    flags = table_of(arguments)
    base = stored.without(*LENGTHS) if set(flags) & set(LENGTHS) else stored
    recipe = base.merged(flags, "flags").merged({"out": str(folder)})
    step = _step(arguments.step)
    refuse_mismatch(stored.flat(), recipe.flat())
    try:
        result = read_result(folder)
    except (OSError, ValueError):  # there is none, or it was changed: the checkpoint tells where the run is
        result = None
    if step is None and result is not None and finished(result, recipe.plain()):
        if rank() == 0:
            say(
                f"{folder} is finished: it has {epochs(result)}, {result['steps']} steps; to "
                f"continue, give a greater length, such as --epochs {math.ceil(2 * result['epochs'])}"
            )
        return 0
    from .resume_run import resume

    return resume(recipe, folder, step, quiet=arguments.quiet, without_missing=arguments.without_missing)


def read(folder: Path) -> Recipe:
    """The recipe of the run."""
    if not (folder / "recipe.toml").is_file():
        raise UserError(
            f"{folder} is not the folder of a run: it has no recipe.toml (on a new host, copy that of another one)"
        )
    return Recipe.load(folder / "recipe.toml")


def finished(result: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Whether the run has reached one of its lengths."""
    from ..simulate.cluster import duration

    if plain["budget"] is not None:
        used = result["seconds"] if result["simulated_seconds"] is None else result["simulated_seconds"]
        if used >= duration(plain["budget"], "budget"):
            return True
    if plain["until"] is not None and result.get("reached") is not None:
        return True
    limits = {name: plain[name] for name in ("epochs", "steps", "samples") if plain[name] is not None}
    return any(result[name] >= limit for name, limit in limits.items())


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    step = literal(text.removeprefix("step-"))
    if not isinstance(step, int) or isinstance(step, bool):
        raise UserError(f"--from {text}: takes the number of a step, such as --from 120")
    return step
