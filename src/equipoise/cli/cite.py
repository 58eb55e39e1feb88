"""`equipoise cite RUN...`"""

from __future__ import annotations

import argparse

from .parser import Parser
from .run_folders import every_run


def configure(parser: Parser) -> None:
    parser.epilog = "examples:\n  equipoise cite runs/demo-1 > used.bib"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")


def run(arguments: argparse.Namespace) -> int:
    from ..config.citations import cite_all

    print(cite_all(every_run(arguments.runs)), end="")
    return 0
