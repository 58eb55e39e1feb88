"""`equipoise report RUN...`"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import UserError
from .parser import Parser

FORMATS = ("html", "md", "csv", "json")


def configure(parser: Parser) -> None:
    parser.epilog = "examples:\n  equipoise report runs/demo-1\n  equipoise report runs/a runs/b --out both.html\n  equipoise report runs/a --format csv > curves.csv"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run; several are laid over each other")
    parser.add_argument(
        "--format",
        default="html",
        metavar="F",
        help="html (default): one page that opens offline; md: tables; csv: every curve; json: everything",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="where to write (default: RUN/report.html for one run, report.html for several; the other formats: standard output)",
    )
    parser.add_argument("--title", default="", metavar="WORDS", help="of the page")


def run(arguments: argparse.Namespace) -> int:
    if arguments.format not in FORMATS:
        raise UserError(f"--format {arguments.format}: takes {', '.join(FORMATS)}")
    folders = [Path(folder) for folder in arguments.runs]
    out = Path(arguments.out) if arguments.out is not None else None
    if arguments.format == "html":
        from ..report.page import write_page

        for path in write_page(folders, out, title=arguments.title):
            print(f"written: {path}")
        return 0
    from ..report.export import export
    from ..report.runs import load_runs, say

    runs = load_runs(folders)
    say(runs)
    text = export(runs, arguments.format)
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another file with --out") from None
    print(f"written: {out}")
    return 0
