"""Two aligned columns of plain text."""

from __future__ import annotations


def columns(rows: list[tuple[str, str]]) -> str:
    """Names and values as two aligned columns."""
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)
