"""Final results and recipes of runs as tables of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .runs import LoadedRun
from .seeds import Group

_COUNTS = ("steps", "samples", "rounds", "messages", "bytes")
_WORDS = {"samples": "examples", "simulated_seconds": "simulated seconds"}  # of columns on a page


def final_results(runs: list[LoadedRun]) -> list[list[str]]:
    """A heading and a row for every finished run; columns that no run has are left out."""
    results = [(run.name, _final(run.result)) for run in runs if run.result is not None]
    heads = list(dict.fromkeys(head for _, values in results for head in values))
    if not results:
        return []
    return [["run", *heads], *([name, *(values.get(h, "") for h in heads)] for name, values in results)]


def _final(result: dict[str, Any]) -> dict[str, str]:
    values = {}
    for model, metrics in result["models"].items():
        for metric, value in metrics.items() if isinstance(metrics, dict) else ():
            values[f"{metric}, {model}"] = _number(value)
    for name in (*_COUNTS, "seconds", "simulated_seconds", "consensus"):
        value = result.get(name)
        if value is not None:
            values[_WORDS.get(name, name)] = _number(value)
    return values


def worker_rows(result: dict[str, Any]) -> list[list[str]]:
    """A heading and one row per worker; columns that no worker has are left out."""
    rows = [r for r in result.get("workers") or [] if isinstance(r, dict)]
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    body = [[_number(row.get(c)) for c in columns] for row in rows]
    return [[_WORDS.get(c, c).replace("_", " ") for c in columns], *body] if rows else []


def recipes(groups: Sequence[LoadedRun | Group]) -> tuple[list[list[str]], list[list[str]]]:
    """Two tables of settings: those that differ between runs or groups (with a heading), and those that are equal."""
    flat = [_settings(one) for one in groups]
    keys = list(dict.fromkeys(key for recipe in flat for key in recipe))
    different, same = [], []
    for key in keys:
        values = [recipe.get(key, "-") for recipe in flat]
        if len(set(values)) == 1:
            same.append([key, values[0]])
        elif key != "out":  # every run has its own folder
            different.append([key, *values])
    heading = [["", *(one.name for one in groups)]] if different else []
    return heading + different, same


def _settings(one: LoadedRun | Group) -> dict[str, str]:
    """Of a run; of several seeds what they share, and all values of what they do not."""
    own = [_flat(run.recipe) for run in (one.runs if isinstance(one, Group) else [one])]
    keys = dict.fromkeys(key for recipe in own for key in recipe)
    return {key: ", ".join(dict.fromkeys(recipe.get(key, "-") for recipe in own)) for key in keys}


def _flat(recipe: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            flat |= {key if name == "name" else f"{key}.{name}": str(v) for name, v in value.items()}
        else:
            flat[key] = str(value)
    return flat


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else ("" if value is None else str(value))
