"""`equipoise join RUN` or `equipoise join HOST:PORT`"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ..config.recipe import Recipe
from ..core.errors import UserError
from .parser import Parser

_DESCRIPTION = """The run must have been started with --elastic. This process becomes one of its workers at the end of
the current round, with the model of the others, and leaves when the run ends. The run prints its address when it
starts; where the folder of the run is visible, its name is enough. The data must be available here too.

examples:
  equipoise join runs/digits-all-reduce-1
  equipoise join 10.0.0.1:29500
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise join RUN|HOST:PORT", _DESCRIPTION
    parser.add_argument("run", metavar="RUN|HOST:PORT", help="folder of the run, or the address that it printed")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(arguments: argparse.Namespace) -> int:
    address = address_of(arguments.run)
    from ..launch.take_part import JOIN, connect, joined_run

    table = json.loads(joined_run(connect(address, 30.0), address).get("recipe"))
    if not table:
        raise UserError(
            f"the run at {address} was started by a script: start the same script with {JOIN}={address} in its "
            "environment"
        )
    os.environ[JOIN] = address
    return take_part(Recipe.from_dict(table, address), quiet=arguments.quiet)


def address_of(name: str) -> str:
    """Of a run: as given, or as its folder says."""
    if (Path(name) / "address").is_file():
        return (Path(name) / "address").read_text().strip()
    if Path(name).is_dir():
        raise UserError(f"{name} does not say where it can be joined: was it started with --elastic?")
    return name


def take_part(recipe: Recipe, *, quiet: bool) -> int:
    from ..loop.from_recipe import assemble
    from ..loop.train import run_job

    job, how = assemble(recipe)
    assert job.folder is not None
    job.folder.mkdir(parents=True, exist_ok=True)  # of this host's own, unless the hosts share one
    if not (job.folder / "recipe.toml").exists():
        recipe.dump(job.folder / "recipe.toml")
    job.quiet = quiet
    done = run_job(job, **how)
    print(f"the run has ended at step {done.result['steps']}: {job.folder}", flush=True)
    return done.stopped
