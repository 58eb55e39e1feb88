"""The combinations to compare: recipes, and the values varied on top of them.

    --vary sync=all-reduce,detag:rounds=4 --vary lr=0.1,0.3     four combinations; two with --list

A value may carry options after colons. Commas inside brackets belong to the value: `batch=8,[8,16,32,64]`.
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

_SHARED = ("seed", "out", "virtual", "workers", "cluster", "until", "timeout", "tensorboard", "track")  # cannot vary


@dataclass(frozen=True)
class Combination:
    name: str
    recipe: Recipe

    @property
    def slug(self) -> str:
        """The name in a form that is safe as a folder name."""
        return re.sub(r"[^A-Za-z0-9.=+_-]+", "-", self.name).strip("-.") or "run"


@dataclass(frozen=True)
class Value:
    """One value of one varied key: as a recipe table, and as the label that names it in results."""

    table: dict[str, Any]
    label: str


def parse_vary(text: str) -> list[Value]:
    """`sync=detag:rounds=4,d-psgd`, `lr=0.1,0.3` or `sync.pull=0.1,0.5`."""
    key, equals, rest = text.partition("=")
    key, dot, option = (word.strip().replace("-", "_") for word in key.partition("."))
    place = f"--vary {text}"
    if not equals or not rest.strip():
        raise UserError(f"{place}: write a key and its values, such as --vary sync=all-reduce,d-psgd")
    if key in _SHARED:
        hint = {"seed": "use --seeds N", "until": "all combinations share one target"}
        raise UserError(f"{place}: {key} cannot vary: {hint.get(key, 'run one comparison for each value')}")
    if key not in AXES and (dot or key not in SETTINGS):
        known = AXES if dot else (*AXES, *SETTINGS)
        raise UserError(f"{place}: unknown {key!r}: {did_you_mean(key, [k for k in known if k not in _SHARED])}")
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
    label = word if isinstance(chosen, str) else f"{key} {word}"
    return Value({key: {"name": chosen, **options}}, label)


def split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    values = [value.strip() for value in values]
    if not all(values):
        raise UserError(f"{text!r}: a value is missing between two commas")
    return values


def combinations(
    files: Sequence[str], varied: Sequence[str], flags: dict[str, Any], *, listed: bool = False
) -> list[Combination]:
    """Every recipe with every combination of values; `listed` pairs the first values, the second values, and so on."""
    bases = [(name, Recipe.load(path)) for name, path in zip(file_names(files), files, strict=True)]
    axes = [parse_vary(text) for text in varied]
    if listed and len({len(values) for values in axes}) > 1:
        counts = ", ".join(f"{text.partition('=')[0]} has {len(v)}" for text, v in zip(varied, axes, strict=True))
        raise UserError(f"--list pairs values one by one, but {counts}: give the same number of each")
    chosen = list(zip(*axes, strict=True)) if listed and axes else list(itertools.product(*axes))
    result = []
    for (base, recipe), values in itertools.product(bases or [("", Recipe())], chosen):
        recipe = recipe.merged(flags, "flags")
        for value in values:
            recipe = recipe.merged(value.table, "--vary")
        labels = [base, *(value.label for value in values)]
        name = ", ".join(label for label in labels if label) or recipe.chosen("sync").name or ""
        result.append(Combination(name, recipe))
    slugs = [one.slug for one in result]
    for one in result:
        if slugs.count(one.slug) > 1:
            raise UserError(f"{one.name!r} appears twice: every combination needs its own name")
    return result


def file_names(files: Sequence[str]) -> list[str]:
    """The stem of each file, or the folder of a recipe.toml; the full paths if two names would be equal."""
    stems = [p.parent.name if (p := Path(f)).name == "recipe.toml" and p.parent.name else p.stem for f in files]
    return stems if len(set(stems)) == len(stems) else list(files)
