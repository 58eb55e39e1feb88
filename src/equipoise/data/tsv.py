"""Labelled sentences from tab-separated files with a header, in the format of SST-2."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..core.errors import DataError, UserError, did_you_mean
from ..core.method import Metadata, option
from .bag import Bag
from .base import Arrays, Data, LoadedData, examples
from .files import given, held_out, ranked, read_text
from .split import class_numbers

PAD, UNKNOWN = "<pad>", "<unk>"


class Sentence(NamedTuple):
    line: int
    words: list[str]
    label: str


@dataclass
class TSV(Data):
    """Sentences and their classes. "tokens": inputs [length] int64; "bag": inputs [words] float32, L2 norm 1.

    Words are separated by whitespace; word 0 is padding, 1 is unknown, the others are ranked by count in all of the
    training part, ties in alphabetical order; column i of a bag counts word i. Classes are the sorted labels, sorted as
    numbers where all are integers. Tabs separate columns; there is no quoting. Without a test file the last tenth of
    the rows is the test part.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="tsv", help="sentences and labels, tab-separated with a header (SST-2 style)"
    )

    path: str = option("", help="file to train on (UTF-8, plain or gzip)")
    test_path: str = option("", help="file to test on; empty: the last tenth of the rows")
    text_column: str = option("sentence", help="column of the text")
    label_column: str = option("label", help="column of the class")
    length: int = option(32, help="words of a sentence that tokens keep; shorter sentences are padded", least=1)
    vocabulary: int = option(10000, help="keep at most this many words, padding and unknown included", least=3)
    limit: int | None = option(None, help="keep only this many training rows, the first ones", least=1)
    features: str = option("tokens", help="what a model sees of a sentence", choices=("tokens", "bag"))

    def check(self) -> None:
        if self.text_column == self.label_column:
            raise UserError(f"TSV: text_column and label_column are both {self.text_column!r}: name two columns")

    def load(self) -> LoadedData:
        train = self._read(self.path, "path")
        if self.test_path:
            test = self._read(self.test_path, "test_path")
        else:
            cut = len(train) - held_out(len(train))
            train, test = train[:cut], train[cut:]
        classes = _classes(train, self.path)
        counts = Counter(word for row in train for word in row.words)
        for special in (PAD, UNKNOWN):
            counts.pop(special, None)
        vocabulary = [PAD, UNKNOWN, *ranked(counts, self.vocabulary - 2)]
        # Without padding: models take word 0 for the end of a sentence, and a file may contain the word "<pad>".
        ids = {word: i for i, word in enumerate(vocabulary) if i}
        bag = self.features == "bag"
        return LoadedData(
            train=self._part(train[: self.limit], ids, classes, self.path),
            test=self._part(test, ids, classes, self.test_path or self.path),
            task="classify",
            outputs=len(classes),
            shape=(len(vocabulary),) if bag else (self.length,),
            tokens=None if bag else len(vocabulary),
            notes={
                "files": [self.path, self.test_path or self.path],
                "vocabulary": vocabulary,
                "classes": list(classes),
            },
        )

    def _read(self, value: str, name: str) -> list[Sentence]:
        path = given(value, "tsv", name, "a tab-separated file with a header")
        header, *lines = [line.removesuffix("\r").split("\t") for line in read_text(path, name).split("\n")]
        if lines and lines[-1] == [""]:
            lines.pop()
        for column, option_name in ((self.text_column, "text_column"), (self.label_column, "label_column")):
            if column not in header:
                raise DataError(
                    f"{path}: no column {column!r} for --data.{option_name}: {did_you_mean(column, header)}"
                )
        at, label_at = header.index(self.text_column), header.index(self.label_column)
        rows = []
        for number, cells in enumerate(lines, start=2):
            if len(cells) != len(header):
                raise DataError(
                    f"{path}: line {number} has {len(cells)} columns, the header {len(header)}: fix or remove that line"
                )
            label = cells[label_at].strip()
            if not label:
                raise DataError(f"{path}: line {number} has no label: fix or remove it")
            rows.append(Sentence(number, cells[at].split(), label))
        if len(rows) < 2:
            raise DataError(f"{path}: {len(rows)} rows below the header, two are the least: check --data.{name}")
        return rows

    def _part(self, rows: list[Sentence], ids: dict[str, int], classes: dict[str, int], source: str) -> Arrays:
        for row in rows:
            if row.label not in classes:
                raise DataError(
                    f"{source}: line {row.line} has label {row.label!r}, which no training row has: "
                    "shuffle the rows, fix the label, or pass another --data.test_path"
                )
        y = np.array([classes[row.label] for row in rows], np.int64)
        bags = [[ids.get(word, 1) for word in row.words] for row in rows]
        if self.features == "bag":
            return Bag(bags, y, 1 + len(ids))
        x = np.zeros((len(bags), self.length), np.int64)
        for padded, bag in zip(x, bags, strict=True):
            padded[: len(bag)] = bag[: self.length]
        return examples(x, y, source)


def _classes(rows: list[Sentence], source: str) -> dict[str, int]:
    """The class of every label of the training part."""
    labels = {row.label for row in rows}
    if len(labels) < 2:
        raise DataError(f"{source}: every training row has the label {labels.pop()!r}: check --data.label_column")
    return class_numbers(labels)
