"""`equipoise watch RUN`: a run while it goes on, here or in another process."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.terminal import fitting
from .columns import columns
from .numbers import integer
from .parser import Parser

if TYPE_CHECKING:
    from ..report.live import Watched

_POLL = 1.0

_EXAMPLES = """Reads what the run writes, so it works for runs of `equipoise train`, for own loops with
`eq.attach(log=FOLDER)` and for the framework adapters alike. It ends with the run.
A served page reloads by itself.

examples:
  equipoise watch runs/digits-all-reduce-1
  equipoise watch runs/demo-1 --once
  equipoise watch runs/a runs/b --serve
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise watch RUN... [--serve]", _EXAMPLES
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or of a comparison")
    parser.add_argument("--serve", action="store_true", help="serve the page on loopback instead; Ctrl-C ends it")
    parser.add_argument("--port", default="8642", metavar="N", help="of the page (default: 8642; 0: any free one)")
    parser.add_argument("--once", action="store_true", help="show the state and end")


def run(arguments: argparse.Namespace) -> int:
    from ..report.live import Watched, serve

    folders = [run for folder in arguments.runs for run in runs_in(Path(folder))]
    if arguments.serve:
        server = serve(folders, integer("port", arguments.port, least=0))
        print(f"http://127.0.0.1:{server.server_address[1]}  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
        finally:
            server.server_close()
    watched = [Watched(folder) for folder in folders]
    if not sys.stdout.isatty():
        return _lines(watched, arguments.once)
    from rich.console import Console, Group
    from rich.live import Live

    if arguments.once:
        console = Console()
        for run in watched:
            run.read()
            console.print(*_table(run, console.width), sep="\n")
        return 0

    with Live(auto_refresh=False) as live:
        while True:
            for run in watched:
                run.read()
            active = [run for run in watched if not run.over] or watched[-1:]
            live.update(Group(*(part for run in active for part in _table(run, live.console.width))), refresh=True)
            if all(run.over for run in watched):
                return 0
            time.sleep(_POLL)


def runs_in(folder: Path) -> list[Path]:
    """The folder of a run; for one of a comparison or of a choice in it, which may be going on, its runs."""
    inside = sorted(path.parent for deep in ("*/", "") for path in folder.glob(f"{deep}seed-*/recipe.toml"))
    return inside if inside and not (folder / "events.jsonl").exists() else [folder]


def _lines(watched: list[Watched], once: bool) -> int:
    """For pipes and logs: the workers once, then a line for each piece of news."""
    while True:
        for run in watched:
            if run.read() or once:
                print(f"{run.folder}: {run.sentence()}", flush=True)
            if once:
                print(columns([(row[0], "  ".join(f"{cell:>10}" for cell in row[1:])) for row in run.workers()]))
        if once or all(run.over for run in watched):
            return 0
        time.sleep(_POLL)


def _table(run: Watched, width: int) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    head, *body = run.workers()
    table = Table(title=Text(f"{run.folder}: {run.sentence()}"), title_justify="left")
    kept = fitting(head, body, width, ("batch", "waiting", "heard", "examples/s"))
    for i in kept:
        table.add_column(head[i], justify="right")
    for row in body[:32]:
        table.add_row(*(row[i] for i in kept))
    return [table] + ([Text(f"and {len(body) - 32} more workers")] if len(body) > 32 else [])
