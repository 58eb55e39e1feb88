"""A whole comparison: plan, run, rank, explain, write. What `equipoise compare` and `equipoise demo` share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ..core.errors import UserError
from ..core.torchrun import under_torchrun
from .display import Display
from .grid import Combination
from .plan import keep_cluster, locked, plan, survey
from .pool import default_jobs, run_all
from .table import cells, measure_of, rows_of
from .words import sentence
from .write import show, write_files


def compare(
    combinations: list[Combination],
    out: Path,
    *,
    seeds: int = 1,
    jobs: int | None = None,
    quiet: bool = False,
    title: str = "",
) -> int:
    """Run everything that is not done yet, then say what wins; the exit code."""
    if under_torchrun():
        raise UserError("a comparison starts its own workers: run it without torchrun, with --processes for real ones")
    with locked(out):
        tasks = plan(keep_cluster(combinations, out), seeds, out)
        survey(tasks)
        measure = measure_of(tasks)
        known = sum(task.state == "done" for task in tasks)
        if known and not quiet:
            print(f"{known} of {len(tasks)} runs are there from before", file=sys.stderr)
        with Display(tasks, measure, quiet=quiet) as display:
            code = run_all(tasks, jobs or default_jobs(tasks), display.told, display.ended)
        if code:
            done = sum(task.state == "done" for task in tasks)
            print(
                f"stopped with {done} of {len(tasks)} runs done; the same command with --out {shlex.quote(str(out))} goes on"
            )
            return code
        rows = rows_of(tasks, measure)
        words = sentence(rows, measure, combinations[0].name)
        head, body = cells(rows, measure)
        show(head, body)
        print(f"\n{words}\n")
        written = write_files(out, rows, (head, body), words, tasks, measure)
        finished = [
            task.folder for row in rows for task in tasks if task.combination.name == row.name and task.state == "done"
        ]
        if not finished:
            print(f"written: {', '.join(map(str, written))}")
            return 3
        from ..report.page import write_page

        written += write_page(
            finished, out / "report.html", title=title or out.resolve().name, sentence=words, table=(head, body)
        )
        print("\n".join(f"written: {path}" for path in written), flush=True)
    return 0
