"""`equipoise watch RUN`: a run while it goes on, here or in another process."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .columns import columns
from .numbers import integer
from .parser import Parser

if TYPE_CHECKING:
    from ..report.live import Watched

_POLL = 1.0

_EXAMPLES = """Reads what the run writes, so it works for runs of `equipoise train`, for own loops with
`eq.attach(log=FOLDER)` and for the framework adapters alike. It ends with the run.

examples:
  equipoise watch runs/digits-all-reduce-1
  equipoise watch runs/a runs/b --serve            # the page of both on http://127.0.0.1:8642, reloading by itself
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise watch RUN... [--serve]", _EXAMPLES
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run; several with --serve")
    parser.add_argument("--serve", action="store_true", help="serve the page on loopback instead; Ctrl-C ends it")
    parser.add_argument("--port", default="8642", metavar="N", help="of the page (default: 8642; 0: any free one)")
    parser.add_argument("--once", action="store_true", help="show the state and end")


def run(arguments: argparse.Namespace) -> int:
    from ..report.live import Watched, serve

    folders = [Path(folder) for folder in arguments.runs]
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
    if arguments.once or not sys.stdout.isatty():
        return _lines(watched, arguments.once)
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while True:
            for run in watched:
                run.read()
            live.update(Group(*(part for run in watched for part in _table(run))), refresh=True)
            if all(run.over for run in watched):
                return 0
            time.sleep(_POLL)


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


def _table(run: Watched) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    head, *body = run.workers()
    table = Table(title=Text(f"{run.folder}: {run.sentence()}"), title_justify="left")
    for title in head:
        table.add_column(title, justify="right")
    for row in body[:32]:
        table.add_row(*row)
    return [table] + ([Text(f"and {len(body) - 32} more workers")] if len(body) > 32 else [])
