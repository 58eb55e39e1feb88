"""The end of a run in a dozen lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def rows(result: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Name and value of everything worth a line."""
    found = [
        ("steps", f"{result['steps']:,}"),
        ("samples", f"{result['samples']:,} ({result['epochs']:.4g} epochs)"),
        ("rounds", f"{result['rounds']:,}"),
        ("messages", f"{result['messages']:,}"),
        ("bytes", f"{result['bytes']:,}"),
        ("seconds", f"{result['seconds']:.2f}"),
    ]
    if result["simulated_seconds"] is not None:
        found.append(("simulated seconds", f"{result['simulated_seconds']:.6g}"))
    for name, metrics in result["models"].items():
        found.append((f"{name} model", "  ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())))
    return [
        *found,
        ("consensus", f"{result['consensus']:.3g}"),
        ("params_sha256", result["params_sha256"]),
        ("folder", str(folder)),
    ]


def summary(result: dict[str, Any], folder: Path) -> None:
    """A table on a terminal, plain columns elsewhere."""
    lines = rows(result, folder)
    if not sys.stdout.isatty():
        width = max(len(name) for name, _ in lines) + 2
        print("\n".join(f"{name:<{width}}{value}" for name, value in lines), flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in lines:
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    Console().print(table)
