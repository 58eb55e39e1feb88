"""The result of a run as a short table."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from .columns import columns


def rows(result: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Names and values of the summary."""
    counts = [
        ("steps", f"{result['steps']:,}"),
        ("examples", f"{result['samples']:,} ({epochs(result)})"),
        ("rounds", f"{result['rounds']:,}"),
        ("messages", f"{result['messages']:,}"),
        ("bytes", f"{result['bytes']:,}"),
        ("seconds", f"{result['seconds']:.2f}"),
    ]
    if result["simulated_seconds"] is not None:
        counts.append(("simulated seconds", f"{result['simulated_seconds']:.6g}"))
    models = [
        (f"{name} model", "  ".join(f"{metric} {value:.4f}" for metric, value in metrics.items()))
        for name, metrics in result["models"].items()
    ]
    return [
        *counts,
        *models,
        ("consensus", f"{result['consensus']:.3g}"),
        ("params_sha256", result["params_sha256"]),
        ("weights", str(folder / "model.pt")),
        ("curves", f"equipoise report {shlex.quote(str(folder))}"),
        ("folder", str(folder)),
    ]


def epochs(result: dict[str, Any]) -> str:
    """How far a run went, in words."""
    number = f"{result['epochs']:.4g}"
    return f"{number} epoch{'' if number == '1' else 's'}"


def summary(result: dict[str, Any], folder: Path) -> None:
    """A table on a terminal, plain columns elsewhere."""
    lines = rows(result, folder)
    if not sys.stdout.isatty():
        print(columns(lines), flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in lines:
        table.add_row(Text(name, style="bold"), Text(value[:16] if name == "params_sha256" else value))
    Console().print(table)
