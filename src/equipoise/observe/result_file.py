"""Reading result.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.json import parse_json

_COUNTS = ("steps", "samples", "epochs", "rounds", "messages", "bytes", "seconds")


def read_result(folder: Path) -> dict[str, Any]:
    """The result of a run; a ValueError says what is wrong with a file that was damaged or changed."""
    result = parse_json((folder / "result.json").read_text(encoding="utf-8"))
    if not isinstance(result, dict) or not isinstance(result.get("models"), dict):
        raise ValueError("it is not the result of a run")
    for name in _COUNTS:
        if not _count(result.get(name)):
            raise ValueError(f"{name} = {result.get(name)!r}"[:80])
    simulated, workers = result.get("simulated_seconds"), result.get("workers")
    if simulated is not None and not _count(simulated):
        raise ValueError(f"simulated_seconds = {simulated!r}"[:80])
    if not isinstance(workers, list) or not all(isinstance(row, dict) for row in workers):
        raise ValueError("workers are no list of tables")
    if not all(isinstance(metrics, dict) for metrics in result["models"].values()):
        raise ValueError("models have no metrics")
    return result


def _count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63
