"""argparse with three additions: `--a_b` means `--a-b`, flags may be dotted, misspelt flags get a suggestion."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from ..config.literal import literal
from ..core.errors import UserError
from ..core.terminal import folded

_NUMBER = re.compile(r"-(\d|\.\d)")

# What other tools call a flag, where spelling does not lead to ours.
_ELSEWHERE = {
    "learning-rate": "--lr",
    "gpu": "--device",
    "gpus": "--device",
    "cuda": "--device",
    "nodes": "--workers",
    "nproc-per-node": "--workers",
    "world-size": "--workers",
    "max-steps": "--steps",
    "compression": "--wire",
    "graph": "--topology",
    "dataset": "--data",
    "output": "--out",
    "output-dir": "--out",
    "target": "--until",
    "random-seed": "--seed",
    "silent": "--quiet",
}


def closest(word: str, known: Sequence[str]) -> str:
    """A suggestion for a misspelt word, or nothing."""
    plain = {name.lstrip("-"): name for name in known}
    if word.startswith("-") and _ELSEWHERE.get(word.lstrip("-")) in known:
        return f"did you mean {_ELSEWHERE[word.lstrip('-')]!r}? "
    near = difflib.get_close_matches(word.lstrip("-"), plain, n=1, cutoff=0.6)
    return f"did you mean {plain[near[0]]!r}? " if near else ""


class Parser(argparse.ArgumentParser):
    """`dotted`: axes allowed before the dot in flags such as `--sync.rounds 4`; values go to `arguments.dotted`."""

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, formatter_class=_Help, **options)
        self.dotted: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}: try {self.prog} --help")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words. A misspelt flag is refused first, before argparse takes its value for another argument."""
        rest: list[str] = []
        dotted: dict[str, dict[str, Any]] = {}
        queue = list(words)
        while queue:
            word = queue.pop(0)
            if word == "--":
                rest += [word, *queue]
                break
            if not word.startswith("--"):
                rest.append(word)
                continue
            flag, equals, value = word.partition("=")
            flag = flag.replace("_", "-")
            if "." not in flag:
                self._check_known(flag)
                rest.append(flag + equals + value)
                continue
            axis, option = self._split(flag)
            if not equals:
                if not queue or (queue[0].startswith("-") and not _NUMBER.match(queue[0])):
                    raise UserError(f"{flag} needs a value: write {flag} VALUE")
                value = queue.pop(0)
            dotted.setdefault(axis, {})[option] = literal(value)
        arguments = self.parse_args(rest)
        arguments.dotted = dotted
        return arguments

    def _check_known(self, flag: str) -> None:
        flags = [f for f in self._option_string_actions if f.startswith("--")]
        if flag not in flags:
            raise UserError(f"unknown flag {flag}: {closest(flag, flags)}try {self.prog} --help")

    def _split(self, flag: str) -> tuple[str, str]:
        axis, _, option = flag[2:].partition(".")
        if axis not in self.dotted:
            near = difflib.get_close_matches(axis, self.dotted, n=1, cutoff=0.5)
            hint = f"did you mean '--{near[0]}.{option}'? " if near else ""
            raise UserError(f"unknown flag {flag}: {hint}try {self.prog} --help")
        return axis, option.replace("-", "_")


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30)

    def _format_usage(self, *arguments: Any) -> str:
        return folded(super()._format_usage(*arguments), self._width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return folded(text, width)
