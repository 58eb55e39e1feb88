"""`equipoise report RUN...`"""

from __future__ import annotations

import argparse
from pathlib import Path

from .parser import Parser


def configure(parser: Parser) -> None:
    parser.epilog = "examples:\n  equipoise report runs/demo-1"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run; the page is RUN/report.html")


def run(arguments: argparse.Namespace) -> int:
    from ..report.page import write_page

    for folder in arguments.runs:
        for path in write_page(Path(folder)):
            print(f"written: {path}")
    return 0
