"""The choices of a run in one level, such as `sync.name = "detag"`: what a checkpoint is compared by."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from ..core.method import Configurable
from .registry import AXES, name_of


def tables_of(methods: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A table per axis: name and every option, in values that TOML and JSON know. A sync's topology has its own
    table.
    """
    topology = getattr(methods.get("sync"), "topology", None)
    methods = {**({"topology": topology} if topology is not None else {}), **methods}
    return {axis: _table(methods[axis]) for axis in AXES if methods.get(axis) is not None}


def flattened(tables: dict[str, Any]) -> dict[str, Any]:
    """Tables and plain settings in one level."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _table(method: Configurable) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(method)}
    options = {name: _plain(value, fields[name]) for name, value in method.options().items() if name != "topology"}
    return {"name": name_of(method)} | options


def _plain(value: Any, field: dataclasses.Field[Any]) -> Any:
    if value is None and not required(field) and field.default is not None:
        return "none"  # left out, it would be read back as the default
    if isinstance(value, (list, tuple)):
        return [_plain(item, field) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float, dict)):
        return value
    # A method, or features in Python: a function, an array, a model. Its address is another on every worker.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
