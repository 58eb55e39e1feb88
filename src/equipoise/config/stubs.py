"""Stubs of the axis packages, which import their methods when they are used: `eq.sync.DPSGD` completes and type-checks.

    python -m equipoise.config.stubs

writes `__init__.pyi` beside each `__init__.py`, from what that imports and what the registry exports.
"""

from __future__ import annotations

import ast
from pathlib import Path

from .registry import AXES, exports, folder_of


def stub(axis: str) -> str:
    """The text of the stub of an axis package."""
    source = (folder_of(axis) / "__init__.py").read_text(encoding="utf-8")
    lines = [
        f"from {'.' * node.level}{node.module} import {alias.name} as {alias.asname}"
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    ]
    lines += [f"from .{module.split('.', 2)[2]} import {name} as {name}" for name, module in exports(axis).items()]
    return "# Written by: python -m equipoise.config.stubs\n" + "\n".join(sorted(lines, key=_place)) + "\n"


def stubs() -> dict[Path, str]:
    """The path and the text of every stub."""
    return {folder_of(axis) / "__init__.pyi": stub(axis) for axis in AXES}


def _place(line: str) -> tuple[bool, str, str]:
    """As import sorting has it: parents first, then by module and name."""
    _, module, _, name, *_ = line.split()
    return not module.startswith(".."), module, name


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
