"""`equipoise partition`: partition a data set, report its quality, save it to a file; compare several partitions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.literal import literal
from ..config.recipe import Choice, Recipe
from ..config.registry import names
from ..core.errors import UserError, did_you_mean
from ..core.terminal import say, show_table, width_of
from .columns import columns
from .numbers import integer, number_list
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
    parser.add_argument("words", nargs="*", metavar="compare ...", help="`compare` and the partitions to compare")
    parser.add_argument("--data", metavar="NAME", default="digits", help="data set (default: digits)")
    parser.add_argument("--partition", metavar="NAME", default="submodular", help="method (default: submodular)")
    parser.add_argument("--workers", metavar="N", help="number of workers (default: 4, or one per speed)")
    parser.add_argument("--speeds", metavar="R,R,...", help="relative speed of each worker, such as 1,2,4,8")
    parser.add_argument("--seed", metavar="N", default="0", help="random seed (default: 0)")
    parser.add_argument("--splits", metavar="N", default="20", help="random partitions to compare with (default: 20)")
    parser.add_argument(
        "--features", metavar="NAME", help="features that distances are measured in (default: those of the partition)"
    )
    parser.add_argument("--out", metavar="FILE", help="write a partition file, and a page next to it")
    parser.add_argument("--page", metavar="FILE", help="write the page here (default: next to --out)")


def run(arguments: argparse.Namespace) -> int:
    speeds = number_list("speeds", arguments.speeds) if arguments.speeds is not None else None
    workers = integer("workers", arguments.workers) if arguments.workers else (len(speeds) if speeds else 4)
    if speeds is not None and len(speeds) != workers:
        raise UserError(f"--speeds has {len(speeds)} numbers for {workers} workers: give one per worker")
    choices = _choices(arguments)
    if arguments.out and len(choices) > 1:
        raise UserError("--out saves one partition: leave out compare, or write the comparison with --page")
    from ..config.build import construct
    from ..core.progress_bar import shown
    from ..data.features import feature_array
    from ..data.source import Source
    from ..partition.strata import strata
    from ..partition.study import study
    from ..report.partition_page import write_partition_page

    partitions = [(name, _partition(choice, speeds)) for name, choice in choices]
    recipe = Recipe().merged({"data": {"name": arguments.data, **arguments.dotted.get("data", {})}}, "flags")
    view = Source(construct("data", recipe.chosen("data")).load().train).view()
    options = {name: integer(name, getattr(arguments, name), least=0) for name in ("seed", "splits")}
    studies = []
    with shown(sys.stderr.isatty()):
        for name, partition in partitions:
            studies.append(
                study(partition, view, workers, speeds=speeds, features=arguments.features, name=name, **options)
            )
    _print(studies)
    if arguments.out:
        studies[0].write(arguments.out)
        print(f"written: {arguments.out}")
    page = arguments.page or (str(Path(arguments.out).with_suffix(".html")) if arguments.out else None)
    if page is not None:
        features = feature_array(view, arguments.features or getattr(partitions[0][1], "features", "inputs"))
        write_partition_page(Path(page), studies, features, strata(view, 10, workers)[0])
        print(f"written: {page}")
    return 0


def _choices(arguments: argparse.Namespace) -> list[tuple[str, Choice]]:
    """The partition of the flags, or each of those named after `compare`."""
    given = arguments.dotted.get("partition", {})
    if not arguments.words:
        return [(arguments.partition, Choice(arguments.partition, given))]
    if arguments.words[0] != "compare":
        raise UserError(f"equipoise partition {arguments.words[0]}: {did_you_mean(arguments.words[0], ['compare'])}")
    choices = [(word, _named(word, given)) for word in arguments.words[1:]]
    if not choices:
        raise UserError(
            "nothing to compare: name partitions or files, such as equipoise partition compare iid stratified"
        )
    return choices


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
    partition: Partition = construct("partition", Choice(choice.name, extra | choice.options))
    return partition


def _print(studies: list[Study]) -> None:
    from ..report.partition_page import compare_rows, facts, worker_rows

    if len(studies) == 1:
        say(columns(facts(studies[0])) + "\n")
    rows = compare_rows(studies) if len(studies) > 1 else worker_rows(studies[0].report)
    if width_of(sys.stdout) is not None:
        show_table(rows[0], rows[1:], rows[0][:0:-1])
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
