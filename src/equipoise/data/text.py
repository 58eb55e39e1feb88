"""Words of plain-text files, cut into windows for language models."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.errors import DataError
from ..core.method import Metadata, option
from .base import Arrays, Data, LoadedData, examples
from .files import given, held_out, ranked, read_text

UNKNOWN, END = "<unk>", "<eos>"


@dataclass
class Text(Data):
    """Windows of words; inputs [length] int64, targets [length]: the same words, shifted by one.

    Words are separated by whitespace and a line ends with `<eos>`. The vocabulary comes from all of the training
    part, regardless of `limit`: `<unk>` is 0, then words by count, ties in alphabetical order. Windows do not
    overlap. Without a test file the last tenth of the windows is the test part.
    """

    metadata: ClassVar[Metadata] = Metadata(name="text", help="words of plain text files, for language models")

    path: str = option("", help="text file to train on (UTF-8, plain or gzip)")
    test_path: str = option("", help="text file to test on; empty: the last tenth of the windows")
    length: int = option(35, help="words in a window", least=1)
    least_count: int = option(1, help="rarer words become <unk>", least=1)
    vocabulary: int | None = option(None, help="keep at most this many words, <unk> included", least=2)
    limit: int | None = option(None, help="keep only this many training windows, the first ones", least=1)

    def load(self) -> LoadedData:
        train, test = self._words()
        counts = Counter(train)
        counts.pop(UNKNOWN, None)
        most = None if self.vocabulary is None else self.vocabulary - 1
        vocabulary = [UNKNOWN, *ranked(counts, most, self.least_count)]
        ids = {word: i for i, word in enumerate(vocabulary)}
        return LoadedData(
            train=self._windows(train, ids, self.path, self.limit),
            test=self._windows(test, ids, self.test_path or self.path, None),
            task="language",
            outputs=len(vocabulary),
            shape=(self.length,),
            tokens=len(vocabulary),
            notes={"files": [self.path, self.test_path or self.path], "vocabulary": vocabulary},
        )

    def _words(self) -> tuple[list[str], list[str]]:
        """The words to train on and to test on, each enough for one window."""
        words = self._read(self.path, "path", 1 if self.test_path else 2)
        if self.test_path:
            return words, self._read(self.test_path, "test_path", 1)
        windows = (len(words) - 1) // self.length
        cut = (windows - held_out(windows)) * self.length
        # The last target of the training part is the first word of the test part.
        return words[: cut + 1], words[cut:]

    def _read(self, value: str, name: str, windows: int) -> list[str]:
        path = given(value, "text", name, "a text file")
        lines = read_text(path, name).split("\n")
        if not lines[-1].strip():
            lines.pop()
        words = [word for line in lines for word in (*line.split(), END)]
        needed = windows * self.length + 1
        if len(words) < needed:
            raise DataError(
                f"{path}: {len(words)} words, but {needed} are the least for windows of {self.length}: "
                "lower --data.length or pass a longer file"
            )
        return words

    def _windows(self, words: list[str], ids: dict[str, int], source: str, limit: int | None) -> Arrays:
        tokens = np.array([ids.get(word, 0) for word in words], np.int64)
        end = (len(tokens) - 1) // self.length * self.length
        x, y = tokens[:end], tokens[1 : end + 1]
        return examples(x.reshape(-1, self.length), y.reshape(-1, self.length), source, limit)
