"""Tables of numbers: a csv file with a header, one column of which is the target."""

from __future__ import annotations

import array
import csv
import io
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..core.errors import DataError, UserError, did_you_mean
from ..core.memory import require_memory
from ..core.method import Metadata, option
from .base import Data, LoadedData, examples
from .files import given, read_text
from .split import class_numbers, held_out_mask

_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " "}

_DROP, _CLASSIFY = "leave the column out with --data.drop", "pass --data.task classify"


class Table(NamedTuple):
    """A file: its inputs as numbers, its target as text, and where the rows stood."""

    source: str
    names: list[str]  # of the inputs
    inputs: np.ndarray  # [rows, columns] float64
    targets: list[str]
    lines: list[int]


@dataclass
class CSV(Data):
    """Inputs [columns] float32: every column but the target. A class, or a number [1] float32, is the target.

    The first line names the columns. Task "auto": text and whole numbers are classes, other numbers are regressed on.
    Classes are the sorted labels, as numbers where all are integers. Inputs are shifted and scaled to mean 0 and
    deviation 1 of the training part (`notes` has "columns", "mean", "std"); targets stay as they are. Without a test
    file a random part is held out, of every class alike.
    """

    metadata: ClassVar[Metadata] = Metadata(name="csv", help="a table of numbers with a header, one column the target")

    path: str = option("", help="file to train on (UTF-8, plain or gzip)")
    target: str = option("", help="column to predict")
    test_path: str = option("", help="file to test on; empty: a part of the rows is held out")
    test: float = option(0.2, help="fraction of the rows that is held out, without a test file", above=0, below=1)
    seed: int = option(0, help="seed of the split", least=0)
    task: str = option("auto", help="what the target is", choices=("auto", "classify", "regress"))
    columns: tuple[str, ...] = option((), help="columns that are inputs; none: all but the target")
    drop: tuple[str, ...] = option((), help="columns to leave out")
    delimiter: str = option("comma", help="what separates columns", choices=tuple(_DELIMITERS))
    standardise: bool = option(True, help="shift and scale every input column to mean 0 and deviation 1")
    limit: int | None = option(None, help="keep only this many training rows, the first ones", least=1)

    def check(self) -> None:
        if self.target and self.target in self.columns:
            raise UserError(f"CSV: the target {self.target!r} cannot be one of the inputs: take it out of columns")

    def load(self) -> LoadedData:
        table = self._read(self.path, "path")
        classify = self.task == "classify" or (self.task == "auto" and _are_classes(table.targets))
        classes = _classes(table) if classify else {}
        y = _targets(table, classes)
        if self.test_path:
            other = self._read(self.test_path, "test_path")
            if other.names != table.names:
                raise DataError(f"{other.source}: its columns are not those of {table.source}: check --data.test_path")
            train = np.ones(len(y), bool)
            test_x, test_y = other.inputs, _targets(other, classes)
        else:
            train = ~held_out_mask(len(y), self.test, self.seed, y if classify else None)
            other, test_x, test_y = table, table.inputs[~train], y[~train]
        x = table.inputs[train]
        mean, std = np.zeros(x.shape[1]), np.ones(x.shape[1])
        if self.standardise:
            mean, std = x.mean(0), x.std(0)
            std[std == 0] = 1  # a constant column becomes zeros
        parts = [((part - mean) / std).astype(np.float32) for part in (x, test_x)]
        return LoadedData(
            train=examples(parts[0], y[train], table.source, self.limit),
            test=examples(parts[1], test_y, other.source),
            task="classify" if classify else "regress",
            outputs=len(classes) if classify else 1,
            shape=(x.shape[1],),
            notes={
                "files": [table.source, other.source],
                "columns": table.names,
                "mean": mean.tolist(),
                "std": std.tolist(),
                "classes": list(classes),
            },
        )

    def _read(self, value: str, name: str) -> Table:
        path = given(value, "csv", name, "a csv file with a header")
        text, mark = read_text(path, name), _DELIMITERS[self.delimiter]
        cells = text.count(mark) + text.count("\n") + 1
        require_memory(len(text) + 20.0 * cells, str(path))  # each number once as float64, a second time while scaled
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        try:
            header = [cell.strip() for cell in next(reader, [])]
            at, label_at = self._places(header, str(path))
            numbers, targets, lines = array.array("d"), [], []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{path}: line {reader.line_num} has {len(row)} columns, the header {len(header)}: fix or "
                        "remove that line"
                    )
                numbers.extend(_number(row[i], path, reader.line_num, header[i], _DROP) for i in at)
                targets.append(row[label_at].strip())
                lines.append(reader.line_num)
        except csv.Error as error:
            raise DataError(f"{path}: line {reader.line_num}: {error}: fix the quotes of that line") from None
        if len(targets) < 2:
            raise DataError(f"{path}: {len(targets)} rows below the header, two are the least: check --data.{name}")
        inputs = np.frombuffer(numbers, np.float64).reshape(len(targets), len(at))
        return Table(str(path), [header[i] for i in at], inputs, targets, lines)

    def _places(self, header: list[str], source: str) -> tuple[list[int], int]:
        """Where the inputs and the target stand in a row."""
        if header and all(map(_is_number, header)):
            raise DataError(f"{source}: the first line holds numbers: put the names of the columns above it")
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise DataError(f"{source}: two columns are named {twice!r}: rename one of them")
        if not self.target:
            raise DataError(f"{source}: pass the column to predict as --data.target: one of {', '.join(header)}")
        wanted = [(self.target, "target")]
        wanted += [(name, option) for option in ("columns", "drop") for name in getattr(self, option)]
        for name, option_name in wanted:
            if name not in header:
                hint = did_you_mean(name, header)
                other = [word for word, mark in _DELIMITERS.items() if len(header) == 1 and mark in header[0]]
                hint = f"if they are separated otherwise, pass --data.delimiter {other[0]}" if other else hint
                raise DataError(f"{source}: no column {name!r} for --data.{option_name}: {hint}")
        inputs = [name for name in self.columns or header if name not in (self.target, *self.drop)]
        if not inputs:
            raise DataError(f"{source}: no column is left for the inputs: check --data.columns and --data.drop")
        return [header.index(name) for name in inputs], header.index(self.target)


def _value(cell: str) -> float:
    """The number of a cell; NaN where there is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _is_number(cell: str) -> bool:
    return math.isfinite(_value(cell))


def _number(cell: str, path: object, line: int, column: str, fix: str) -> float:
    value = _value(cell)
    if math.isfinite(value):
        return value
    what = f"{cell.strip()[:40]!r} is no number" if cell.strip() else "it is empty"
    raise DataError(f"{path}: line {line}, column {column!r}: {what}: fix it, or {fix}")


def _are_classes(targets: list[str]) -> bool:
    """Text and whole numbers; "1.0" is a number to regress on."""
    return not all(map(_is_number, targets)) or all(cell.lstrip("+-").isdigit() for cell in targets)


def _classes(table: Table) -> dict[str, int]:
    if "" in table.targets:
        line = table.lines[table.targets.index("")]
        raise DataError(f"{table.source}: line {line} has no target: fix or remove it")
    classes = class_numbers(table.targets)
    if len(classes) < 2:
        raise DataError(f"{table.source}: every row has the target {table.targets[0]!r}: check --data.target")
    if len(classes) > max(2, len(table.targets) // 2):
        raise DataError(
            f"{table.source}: {len(classes)} different targets in {len(table.targets)} rows are no classes: check "
            "--data.target, or pass --data.task regress for numbers"
        )
    return classes


def _targets(table: Table, classes: dict[str, int]) -> np.ndarray:
    """The class of every row, or its number where there are no classes."""
    if not classes:
        rows = zip(table.targets, table.lines, strict=True)
        numbers = [_number(cell, table.source, line, "the target", _CLASSIFY) for cell, line in rows]
        return np.array(numbers, np.float32)[:, None]
    for label, line in zip(table.targets, table.lines, strict=True):
        if label not in classes:
            raise DataError(
                f"{table.source}: line {line} has target {label!r}, which no training row has: fix it, or pass another "
                "--data.test_path"
            )
    return np.array([classes[label] for label in table.targets], np.int64)
