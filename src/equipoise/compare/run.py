"""A comparison from start to end: plan, run, rank, explain, write. Used by `equipoise compare` and `equipoise demo`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ..core.errors import UserError
from ..core.terminal import say
from ..core.torchrun import under_torchrun
from .display import Display
from .explain import explain
from .grid import Combination
from .page import write_comparison_page, write_recipe
from .plan import keep_cluster, locked, plan, survey
from .pool import default_jobs, run_all
from .table import cells, criterion_of, rows_of
from .write import show, write_files


def compare(
    combinations: list[Combination],
    out: Path,
    *,
    seeds: int = 1,
    jobs: int | None = None,
    quiet: bool = False,
    title: str = "",
    by: str = "time",
) -> int:
    """Run everything that is not done yet, then print and write the ranking. Returns the exit code."""
    if under_torchrun():
        raise UserError(
            "a comparison starts its own workers: run it without torchrun; --processes makes them real processes"
        )
    with locked(out):
        runs = plan(keep_cluster(combinations, out), seeds, out)
        survey(runs)
        criterion = criterion_of(runs, by)
        already_done = sum(run.state == "done" for run in runs)
        if already_done and not quiet:
            print(f"{already_done} of {len(runs)} runs are already done and are not repeated", file=sys.stderr)
        with Display(runs, criterion, quiet=quiet) as display:
            code = run_all(runs, jobs or default_jobs(runs), display.update, display.finished)
        if code:
            done = sum(run.state == "done" for run in runs)
            say(
                f"stopped with {done} of {len(runs)} runs done; "
                f"to continue, repeat the command with --out {shlex.quote(str(out))}"
            )
            return code
        rows = rows_of(runs, criterion, combinations[0].name)
        explanation = explain(rows, criterion, combinations[0].name)
        head, body = cells(rows, criterion)
        show(head, body)
        say(f"\n{explanation}\n")
        written = write_files(out, rows, (head, body), explanation, runs, criterion, title)
        finished = [(run.combination.name, run.folder) for run in runs if run.state == "done"]
        if not finished:
            say(f"written: {', '.join(map(str, written))}")
            return 3
        written += write_recipe(out, rows, criterion, runs)
        written += write_comparison_page(out, rows, criterion, explanation, finished, title=title)
        print("\n".join(f"written: {path}" for path in written), flush=True)
    return 0
