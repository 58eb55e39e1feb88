"""`equipoise partition`: divide a data set, say how good the division is, keep it in a file; compare several."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.literal import literal
from ..config.recipe import Choice, Recipe
from ..config.registry import names
from ..core.errors import UserError, did_you_mean
from .parser import Parser

if TYPE_CHECKING:
    from ..partition import Partition
    from ..partition.study import Study

_EXAMPLES = """examples:
  equipoise partition --workers 4 --speeds 1,2,4,8 --out part.json
  equipoise partition --data cifar10 --data.dir DIR --workers 8 --partition.objective herding --out part.json
  equipoise train --partition from-file --partition.path part.json --workers 4 --batch proportional
  equipoise partition compare iid stratified submodular submodular:objective=herding part.json --workers 4 \\
      --speeds 1,2,4,8 --page compare.html
"""


def configure(parser: Parser) -> None:
    parser.dotted = ("data", "partition")
    parser.epilog = _EXAMPLES
    parser.usage = "equipoise partition [compare NAME|NAME:OPTION=VALUE|FILE.json ...] [flags]"
    parser.add_argument("words", nargs="*", metavar="compare ...", help="`compare` and what to put side by side")
    parser.add_argument("--data", metavar="NAME", default="digits", help="what to divide (default: digits)")
    parser.add_argument("--partition", metavar="NAME", default="submodular", help="how (default: submodular)")
    parser.add_argument("--workers", metavar="N", help="number of workers (default: 4, or one per speed)")
    parser.add_argument("--speeds", metavar="R,R,...", help="relative speed of each worker, such as 1,2,4,8")
    parser.add_argument("--seed", metavar="N", default="0", help="seed of everything that is drawn (default: 0)")
    parser.add_argument("--splits", metavar="N", default="20", help="random splits to compare with (default: 20)")
    parser.add_argument("--features", metavar="NAME", help="what distances are measured by (default: the partition's)")
    parser.add_argument("--out", metavar="FILE", help="write a partition file, and a page beside it")
    parser.add_argument("--page", metavar="FILE", help="where the page goes (default: FILE.html beside --out)")


def run(arguments: argparse.Namespace) -> int:
    speeds = _speeds(arguments.speeds)
    workers = _whole("workers", arguments.workers, 1) if arguments.workers else (len(speeds) if speeds else 4)
    if speeds is not None and len(speeds) != workers:
        raise UserError(f"--speeds has {len(speeds)} numbers for {workers} workers: give one per worker")
    wishes = _wishes(arguments)
    from ..config.build import construct
    from ..core.progress_bar import shown
    from ..data.features import feature_array
    from ..data.source import Source
    from ..partition.strata import strata
    from ..partition.study import study
    from ..report.partition_page import write_partition_page

    made = [(name, _partition(choice, speeds)) for name, choice in wishes]
    recipe = Recipe().merged({"data": {"name": arguments.data, **arguments.dotted.get("data", {})}}, "flags")
    view = Source(construct("data", recipe.chosen("data")).load().train).view()
    options = {"seed": _whole("seed", arguments.seed, 0), "splits": _whole("splits", arguments.splits, 0)}
    studies = []
    with shown(sys.stderr.isatty()):
        for name, partition in made:
            done = study(partition, view, workers, speeds=speeds, features=arguments.features, name=name, **options)
            studies.append(done)
    _print(studies)
    if arguments.out:
        if len(studies) > 1:
            raise UserError("--out keeps one partition: leave compare out, or write the comparison with --page")
        studies[0].write(arguments.out)
        print(f"written: {arguments.out}")
    page = arguments.page or (str(Path(arguments.out).with_suffix(".html")) if arguments.out else None)
    if page is not None:
        features = feature_array(view, arguments.features or getattr(made[0][1], "features", "inputs"))
        write_partition_page(Path(page), studies, features, strata(view, 10, workers)[0])
        print(f"written: {page}")
    return 0


def _wishes(arguments: argparse.Namespace) -> list[tuple[str, Choice]]:
    """What to divide by: the flags, or each of the words after `compare`."""
    given = arguments.dotted.get("partition", {})
    if not arguments.words:
        return [(arguments.partition, Choice(arguments.partition, given))]
    if arguments.words[0] != "compare":
        raise UserError(f"equipoise partition {arguments.words[0]}: {did_you_mean(arguments.words[0], ['compare'])}")
    found = [(word, _named(word, given)) for word in arguments.words[1:]]
    if not found:
        raise UserError("compare what? name partitions or files, such as: equipoise partition compare iid submodular")
    return found


def _named(word: str, given: dict[str, Any]) -> Choice:
    """`submodular:objective=herding,polish=20`, or a partition file."""
    if word.endswith(".json"):
        return Choice("from-file", {"path": word})
    name, _, rest = word.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{word}: write NAME:OPTION=VALUE, such as submodular:objective=herding")
        options[key.replace("-", "_")] = literal(value)
    return Choice(name, (given if name == "submodular" else {}) | options)


def _partition(choice: Choice, speeds: list[float] | None) -> Partition:
    import dataclasses

    from ..config import registry
    from ..config.build import construct

    if choice.name not in names("partition"):
        raise UserError(f"unknown partition {choice.name!r}: {did_you_mean(str(choice.name), names('partition'))}")
    fields = {field.name for field in dataclasses.fields(registry.get("partition", choice.name))}
    extra = {"speeds": speeds} if speeds is not None and "speeds" in fields else {}
    return construct("partition", Choice(choice.name, extra | choice.options))


def _print(studies: list[Study]) -> None:
    from ..report.partition_page import compare_rows, facts, worker_rows

    if len(studies) == 1:
        lines = facts(studies[0])
        width = max(len(name) for name, _ in lines) + 2
        print("\n".join(f"{name:<{width}}{value}" for name, value in lines))
        print()
    rows = compare_rows(studies) if len(studies) > 1 else worker_rows(studies[0].report)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))


def _speeds(text: str | None) -> list[float] | None:
    if text is None:
        return None
    found = literal(text)
    values = found if isinstance(found, list) else [found]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        raise UserError(f"--speeds {text}: takes one number per worker, such as 1,2,4,8")
    return [float(v) for v in values]


def _whole(name: str, text: str, least: int) -> int:
    value = literal(text)
    if not isinstance(value, int) or value < least:
        raise UserError(f"--{name} {text}: takes a whole number, at least {least}")
    return value
