"""`equipoise cite RUN...`"""

from __future__ import annotations

import argparse

from .parser import Parser


def configure(parser: Parser) -> None:
    parser.epilog = "examples:\n  equipoise cite runs/digits-detag-1 > used.bib"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")


def run(arguments: argparse.Namespace) -> int:
    from ..config.citations import cite_all

    print(cite_all(arguments.runs), end="")
    return 0
