"""From a recipe to methods: one object per axis."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, did_you_mean
from . import registry
from .fingerprint import required, tables_of

if TYPE_CHECKING:
    from .recipe import Choice, Recipe


def objects(recipe: Recipe) -> dict[str, Any]:
    """One object per axis; no topology where nothing asks for one."""
    methods = {axis: construct(axis, recipe.chosen(axis)) for axis in registry.AXES if axis not in ("topology", "sync")}
    cls, extra = registry.get("sync", recipe.chosen("sync").name or ""), {}
    if "topology" in recipe.choices or needs_topology(cls):
        methods["topology"] = construct("topology", recipe.chosen("topology"))
        if takes_topology(cls):
            extra["topology"] = methods["topology"]
    methods["sync"] = construct("sync", recipe.chosen("sync"), **extra)
    if takes_topology(cls):
        methods["topology"] = methods["sync"].topology
    return methods


def takes_topology(cls: type) -> bool:
    return any(field.name == "topology" for field in dataclasses.fields(cls))


def needs_topology(cls: type) -> bool:
    return any(field.name == "topology" and required(field) for field in dataclasses.fields(cls))


def construct(axis: str, choice: Choice, **extra: Any) -> Any:
    """The object behind a choice; unknown and missing options are refused by the name the user gave."""
    name = choice.name or ""
    cls = registry.get(axis, name)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    known = [n for n in fields if n != "topology"]
    hints = typing.get_type_hints(cls)
    values = dict(extra)
    for option, value in choice.options.items():
        if option not in known:
            fix = did_you_mean(option, known) if known else f"{name} has no options"
            raise UserError(f"unknown option {axis}.{option} of {axis} {name}: {fix}")
        values[option] = fitted(hints[option], fields[option], value)
    missing = [n for n, field in fields.items() if required(field) and n not in values]
    if missing:
        raise UserError(f"{axis} {name} needs {' and '.join(f'--{axis}.{n}' for n in missing)}")
    return cls(**values)


def fitted(hint: Any, field: dataclasses.Field[Any], value: Any) -> Any:
    """What a shell or TOML cannot say directly: no value, a list of one, a string that looks like a number."""
    arms = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = {typing.get_origin(arm) or arm for arm in arms}
    if value == "none" and type(None) in kinds and "none" not in (field.metadata.get("choices") or ()):
        return None
    kinds.discard(type(None))
    if isinstance(value, (int, float, str)) and kinds and kinds <= {list, tuple}:
        return [value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and kinds == {str}:
        return str(value)
    return value


def described(recipe: Recipe) -> dict[str, Any]:
    """A table per axis: name and every option, in values that TOML and JSON know."""
    return tables_of(objects(recipe))
