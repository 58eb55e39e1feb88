"""Prose on a terminal: no word is broken, commands stay commands, and nothing is lost."""

from __future__ import annotations

import io
import shlex
import sys

import pytest

from equipoise.cli.main import COMMANDS, main
from equipoise.core.terminal import fitting, folded, say, width_of

PROSE = """A paragraph that goes on over
two lines of its source and is longer than the terminal is wide.

examples:
  equipoise compare --vary sync=all-reduce,d-psgd --until accuracy=0.9 --cluster cluster.toml --out 'my runs'
  name      what it is, in so many words that they need a second line under the first one
short  stays
"""


@pytest.mark.parametrize("width", [44, 60, 80])
def test_lines_fit_and_no_word_is_lost_or_broken(width: int) -> None:
    text = folded(PROSE, width)
    assert max(map(len, text.splitlines())) <= width
    assert [word for word in text.split() if word != "\\"] == PROSE.split()


def test_a_folded_command_is_the_same_command() -> None:
    line = PROSE.splitlines()[4]
    rows = folded(line, 60)
    assert rows.count("\\\n") == 2
    assert shlex.split(rows.replace("\\\n", " ")) == shlex.split(line)
    assert "--until\n" not in rows.replace(" \\", ""), "a flag and its value stay together"


def test_the_second_column_keeps_its_place() -> None:
    rows = folded(PROSE, 40).splitlines()
    first = next(i for i, row in enumerate(rows) if row.startswith("  name"))
    assert rows[first + 1].startswith(" " * 12 + rows[first + 1].strip()[0])
    assert folded(PROSE, 200) == PROSE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_terminals_are_folded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = "word " * 40
    say(words)
    assert capsys.readouterr().out == words + "\n"
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "44")
    assert width_of(terminal) == 44
    say(words, error=True)
    assert max(map(len, terminal.getvalue().splitlines())) == 44


@pytest.mark.parametrize("width", [60, 80])
def test_the_help_of_every_command_fits(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        rows = capsys.readouterr().out.splitlines()
        wide = [row for row in rows if len(row) > width]
        assert not wide, f"{name}: {wide}"
        # A command goes on after a backslash; prose does not, nor does a comment.
        odd = [row for row in rows if row.endswith("\\") and (not row.startswith(" ") or "#" in row)]
        assert not odd, f"{name}: {odd}"


def test_a_narrow_table_loses_the_columns_that_matter_least() -> None:
    head, body = ["a name", "much", "some"], [["first", "123456", "7"]]
    assert fitting(head, body, 40, ("some", "much")) == [0, 1, 2]
    assert fitting(head, body, 20, ("some", "much")) == [0, 1]
    assert fitting(head, body, 10, ("some", "much")) == [0]


def test_a_long_command_says_at_once_that_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch is imported: here that fails, and the line is there all the same."""
    modules = ("equipoise.compare.run", "equipoise.search.search", "equipoise.cli.run_recipe")
    for words in (["train"], ["compare", "--vary", "period=1,2"], ["plan", "--cluster", "office"]):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal := Terminal())
            for name in modules:
                patch.setitem(sys.modules, name, None)
            assert main(words) == 1
        assert terminal.getvalue().startswith("starting: "), words
