"""The ends of runs and their recipes as tables of text."""

from __future__ import annotations

from typing import Any

from .runs import LoadedRun

_COUNTS = ("steps", "samples", "rounds", "messages", "bytes")


def ends(runs: list[LoadedRun]) -> list[list[str]]:
    """A heading and a row for every run that came to an end; columns that nobody has are left out."""
    found = [(run.name, _end(run.result)) for run in runs if run.result is not None]
    heads = list(dict.fromkeys(name for _, end in found for name in end))
    if not found:
        return []
    return [["run", *heads], *([name, *(end.get(h, "") for h in heads)] for name, end in found)]


def _end(result: dict[str, Any]) -> dict[str, str]:
    found = {}
    for model, metrics in result["models"].items():
        for metric, value in metrics.items() if isinstance(metrics, dict) else ():
            found[f"{metric}, {model}"] = _number(value)
    for name in (*_COUNTS, "seconds", "simulated_seconds", "consensus"):
        value = result.get(name)
        if value is not None:
            found[name.replace("_", " ")] = _number(value)
    return found


def worker_rows(result: dict[str, Any]) -> list[list[str]]:
    """A heading and a row per worker; what no worker has is left out."""
    rows = [r for r in result.get("workers") or [] if isinstance(r, dict)]
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    body = [[_number(row.get(c)) for c in columns] for row in rows]
    return [[c.replace("_", " ") for c in columns], *body] if rows else []


def recipes(runs: list[LoadedRun]) -> tuple[list[list[str]], list[list[str]]]:
    """Rows that differ between runs (a heading, then name and one value per run), and rows that do not."""
    flat = [_flat(run.recipe) for run in runs]
    keys = list(dict.fromkeys(key for recipe in flat for key in recipe))
    different, same = [], []
    for key in keys:
        values = [recipe.get(key, "-") for recipe in flat]
        if len(set(values)) == 1:
            same.append([key, values[0]])
        elif key != "out":  # the folder: every run has its own
            different.append([key, *values])
    heading = [["", *(run.name for run in runs)]] if different else []
    return heading + different, same


def _flat(recipe: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            found |= {key if name == "name" else f"{key}.{name}": str(v) for name, v in value.items()}
        else:
            found[key] = str(value)
    return found


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else ("" if value is None else str(value))
