"""`equipoise list [AXIS [NAME]]`"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any

from ..config.registry import AXES, entries, get
from ..core.errors import UserError, did_you_mean
from ..core.terminal import say
from .parser import Parser

_EXAMPLES = """examples:
  equipoise list
  equipoise list sync
  equipoise list partition dirichlet
"""


def configure(parser: Parser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("axis", nargs="?", metavar="AXIS", help=f"one of {', '.join(AXES)}")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method of this axis: what it does and its options")


def run(arguments: argparse.Namespace) -> int:
    if arguments.axis is not None and arguments.axis not in AXES:
        raise UserError(f"unknown axis {arguments.axis!r}: {did_you_mean(arguments.axis, list(AXES))}")
    if arguments.name is not None:
        say(card(arguments.axis, arguments.name))
        return 0
    axes = AXES if arguments.axis is None else (arguments.axis,)
    width = max(len(entry.name) for axis in axes for entry in entries(axis)) + 2
    blocks = []
    for axis in axes:
        lines = [f"  {entry.name:<{width}}{entry.help}" for entry in entries(axis)]
        blocks.append("\n".join([axis, *lines]))
    say("\n\n".join(blocks))
    return 0


def card(axis: str, name: str) -> str:
    """What one method does and its options."""
    cls: Any = get(axis, name)
    name, summary = cls.metadata.name, cls.metadata.help
    parts = [f"{axis} {name}: {summary}", inspect.getdoc(cls) or ""]
    rows = [_row(axis, field) for field in dataclasses.fields(cls)]
    if rows:
        widths = [max(len(row[i]) for row in rows) + 2 for i in range(3)]
        lines = ["  " + "".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)) + row[3] for row in rows]
        parts.append("\n".join(["options", *lines]))
    else:
        parts.append("no options")
    package = f"equipoise.{axis}" if cls.__module__.startswith("equipoise.") else cls.__module__
    parts.append(f"in Python: {package}.{cls.__name__}")
    return "\n\n".join(part for part in parts if part)


def _row(axis: str, field: dataclasses.Field[Any]) -> tuple[str, str, str, str]:
    if field.default is not dataclasses.MISSING:
        default = repr(field.default)
    elif field.default_factory is not dataclasses.MISSING:
        default = repr(field.default_factory())
    else:
        default = "required"
    text = field.metadata.get("help", "")
    choices = field.metadata.get("choices")
    if choices:
        text += f" (one of {', '.join(map(str, choices))})"
    flag = "--topology" if field.name == "topology" else f"--{axis}.{field.name}"
    kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
    return flag, kind, default, text
