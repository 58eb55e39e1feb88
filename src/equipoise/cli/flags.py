"""The flags of a recipe: one per axis, dotted flags for its options, one per setting."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.defaults import NAMES as DEFAULTS
from ..config.literal import literal
from ..config.recipe import Recipe
from ..config.registry import AXES
from ..config.settings import SETTINGS
from ..core.errors import UserError
from .parser import Parser

_QUESTIONS = {
    "partition": "which examples a worker owns",
    "order": "in which order it visits them",
    "batch": "how many examples per step: a name, a number, or one number per worker (8,16,32)",
    "period": "when workers communicate: a name, or a number H for every H steps",
    "topology": "which workers communicate with each other",
    "sync": "what they exchange and how they combine it",
    "wire": "how vectors travel: as they are, or compressed",
    "data": "what to train on: a name, or package.module:function",
    "model": "what to train: a name, or package.module:function",
}
_DEFAULTS = {
    "batch": "32",
    "period": "1",
    "topology": "chosen by the sync",
    "sync": "all-reduce, or periodic-average with a period",
    "model": "one that fits the data",
}
_METAVARS = {
    "cluster": "FILE",
    "budget": "TIME",
    "out": "FOLDER",
    "elastic": "MIN:MAX",
    "listen": "HOST:PORT",
    "loss": "NAME",
}


def add_recipe_flags(parser: Parser) -> None:
    """Add a flag for every axis and every setting. A flag that is not given leaves no attribute in the arguments."""
    parser.dotted = AXES
    group = parser.add_argument_group(
        "choices",
        "Names: equipoise list AXIS. Options of one: equipoise list AXIS NAME; set them with --AXIS.OPTION VALUE.",
    )
    for axis in AXES:
        default = _DEFAULTS.get(axis, DEFAULTS.get(axis))
        text = f"{_QUESTIONS[axis]} (default: {default})"
        group.add_argument(f"--{axis}", metavar="NAME", default=argparse.SUPPRESS, help=text)
    groups: dict[str, Any] = {}
    for setting in SETTINGS.values():
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        flag = f"--{setting.name.replace('_', '-')}"
        text = setting.help.replace("%", "%%")
        if setting.default is not None and setting.kind is not bool:
            text += f" (default: {setting.default:g})" if setting.kind is not str else f" (default: {setting.default})"
        if setting.kind is bool:
            groups[setting.group].add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
            continue
        named = "|".join(setting.choices) or _METAVARS.get(setting.name)
        metavar = named or ("N" if setting.kind is int else "X")
        groups[setting.group].add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=text)


def table_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given flags in the structure of a recipe file."""
    given = vars(arguments)
    table: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if name in given:
            text = given[name]
            table[name] = literal(text) if setting.kind in (int, float) else text
    for axis in AXES:
        options = given["dotted"].get(axis, {})
        if "name" in options:
            raise UserError(f"--{axis}.name: write --{axis} {options['name']}")
        if axis in given:
            table[axis] = {"name": literal(given[axis]), **options}
        elif options:
            table[axis] = options
    return table


def recipe_of(arguments: argparse.Namespace, base: Recipe) -> Recipe:
    """`base` with the flags applied."""
    return base.merged(table_of(arguments), "flags")
