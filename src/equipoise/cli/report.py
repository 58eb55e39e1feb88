"""`equipoise report RUN...`"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.errors import UserError
from .parser import Parser
from .run_folders import every_run

FORMATS = ("html", "md", "csv", "json")

_EXAMPLES = """examples:
  equipoise report runs/demo-1
  equipoise report runs/a runs/b --out both.html
  equipoise report runs/a --format csv > curves.csv
"""


def configure(parser: Parser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="folder of a run or a comparison; several runs share their plots"
    )
    parser.add_argument(
        "--format",
        default="html",
        metavar="F",
        help="html (default): a page that works offline; md: tables; csv: every curve; json: everything",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="file to write (default: RUN/report.html, report.html for several runs; other formats: standard output)",
    )
    parser.add_argument("--title", default="", metavar="WORDS", help="title of the page")


def run(arguments: argparse.Namespace) -> int:
    if arguments.format not in FORMATS:
        raise UserError(f"--format {arguments.format}: takes {', '.join(FORMATS)}")
    if len(arguments.runs) == 1 and arguments.format == "html":
        from ..compare.page import read_comparison, write_comparison_page

        folder = Path(arguments.runs[0])
        comparison = read_comparison(folder)
        if comparison is not None and comparison[-1]:
            page = Path(arguments.out) if arguments.out is not None else None
            for path in write_comparison_page(folder, *comparison, title=arguments.title, path=page):
                print(f"written: {path}")
            return 0
    folders = every_run(arguments.runs)
    out = Path(arguments.out) if arguments.out is not None else None
    if arguments.format == "html":
        from ..report.page import write_page

        for path in write_page(folders, out, title=arguments.title):
            print(f"written: {path}")
        return 0
    from ..report.export import export
    from ..report.runs import load_runs, print_notes

    runs = load_runs(folders)
    print_notes(runs)
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
