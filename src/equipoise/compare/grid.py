"""What is compared: recipes, and what is varied on top of them.

    --vary sync=all-reduce,detag:rounds=4 --vary lr=0.1,0.3     four combinations; with --list two, pair by pair

A value may carry options behind colons. Commas inside brackets belong to the value: `batch=8,[8,16,32,64]`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.literal import literal
from ..config.recipe import Recipe
from ..config.registry import AXES
from ..config.settings import SETTINGS
from ..core.errors import UserError, did_you_mean

_DECIDED = ("seed", "out", "virtual", "workers", "cluster", "until", "timeout", "tensorboard")  # the same for all


@dataclass(frozen=True)
class Combination:
    name: str
    recipe: Recipe

    @property
    def slug(self) -> str:
        """The name as a folder."""
        return re.sub(r"[^A-Za-z0-9.=+_-]+", "-", self.name).strip("-.") or "run"


@dataclass(frozen=True)
class Value:
    """One value of one thing that is varied, as a table of a recipe and in words."""

    table: dict[str, Any]
    words: str


def parse_vary(text: str) -> list[Value]:
    """`sync=detag:rounds=4,d-psgd`, `lr=0.1,0.3` or `sync.pull=0.1,0.5`."""
    key, equals, rest = text.partition("=")
    key, dot, option = (word.strip().replace("-", "_") for word in key.partition("."))
    place = f"--vary {text}"
    if not equals or not rest.strip():
        raise UserError(f"{place}: write what varies and its values, such as --vary sync=all-reduce,d-psgd")
    if key in _DECIDED:
        hint = {"seed": "use --seeds N", "until": "all combinations are measured by one target"}
        raise UserError(f"{place}: {key} is the same for all: {hint.get(key, 'compare once for each')}")
    if key not in AXES and (dot or key not in SETTINGS):
        known = AXES if dot else (*AXES, *SETTINGS)
        raise UserError(f"{place}: unknown {key!r}: {did_you_mean(key, [k for k in known if k not in _DECIDED])}")
    return [_value(key, option, word, place) for word in split(rest)]


def _value(key: str, option: str, word: str, place: str) -> Value:
    if option:
        return Value({key: {option: literal(word)}}, f"{option} {word}")
    if key in SETTINGS:
        value = literal(word) if SETTINGS[key].kind is not str else word
        return Value({key: value}, f"{key.replace('_', '-')} {word}")
    name, *pairs = word.split(":")
    options = {}
    for pair in pairs:
        left, equals, right = pair.partition("=")
        if not equals or not left.strip() or not right.strip():
            raise UserError(f"{place}: {pair!r} is not an option: write {name}:OPTION=VALUE")
        options[left.strip().replace("-", "_")] = literal(right)
    chosen = literal(name)
    words = word if isinstance(chosen, str) else f"{key} {word}"
    return Value({key: {"name": chosen, **options}}, words)


def split(text: str) -> list[str]:
    """At commas outside of brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    found = [word.strip() for word in words]
    if not all(found):
        raise UserError(f"{text!r}: there is nothing between two commas")
    return found


def combinations(
    files: Sequence[str], varied: Sequence[str], flags: dict[str, Any], *, listed: bool = False
) -> list[Combination]:
    """Every recipe with every choice of values (or, `listed`, the first with the first, the second with the second)."""
    bases = [(name, Recipe.load(path)) for name, path in zip(file_names(files), files, strict=True)]
    axes = [parse_vary(text) for text in varied]
    if listed and len({len(values) for values in axes}) > 1:
        counts = ", ".join(f"{text.partition('=')[0]} has {len(v)}" for text, v in zip(varied, axes, strict=True))
        raise UserError(f"--list takes values in pairs, and {counts}: give as many of each")
    chosen = list(zip(*axes, strict=True)) if listed and axes else list(itertools.product(*axes))
    found = []
    for (base, recipe), values in itertools.product(bases or [("", Recipe())], chosen):
        recipe = recipe.merged(flags, "flags")
        for value in values:
            recipe = recipe.merged(value.table, "--vary")
        words = [base, *(value.words for value in values)]
        name = ", ".join(word for word in words if word) or recipe.chosen("sync").name or ""
        found.append(Combination(name, recipe))
    slugs = [one.slug for one in found]
    for one in found:
        if slugs.count(one.slug) > 1:
            raise UserError(f"{one.name!r} appears twice: every combination needs a name of its own")
    return found


def file_names(files: Sequence[str]) -> list[str]:
    """The stem of each file, its path where two are called alike, its folder where it is the recipe of a run."""
    stems = [p.parent.name if (p := Path(f)).name == "recipe.toml" and p.parent.name else p.stem for f in files]
    return stems if len(set(stems)) == len(stems) else list(files)
