"""The kinds of values that a worker's state holds, taken from a fresh worker: what a file must hold to be loaded.

A checksum says that a file is what was written, not that it is the state of this worker: it may come from another
version, or from somebody else. Values are compared by their kinds alone: types, keys, shapes, counts that are not
negative.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

ANY: Any = object()  # a value of which a fresh worker does not know what will be there
_WORDS = {dict: "a table", list: "a list", tuple: "a tuple", str: "a text", int: "a whole number", float: "a number"}


class Late(NamedTuple):
    """The type of a value that is None at first; for tensors their last dimension, if it is known."""

    type: type
    width: int | None = None


class Loose(dict[Any, Any]):
    """The kinds of a table that another version may have written: keys may be missing."""


def kind_of(value: Any, table: type[dict[Any, Any]] = dict) -> Any:
    """None begins as nothing and may become anything; lists may grow, and tables may have more keys."""
    if value is None:
        return ANY
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, dict):
        return table({key: kind_of(item, table) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return [type(value), *(kind_of(item, table) for item in (value if isinstance(value, tuple) else value[:1]))]
    if isinstance(value, int) and not isinstance(value, bool) and table is Loose:
        return float  # a weight decay of 0 is one of 0.0
    return type(value) if not isinstance(value, int) or isinstance(value, bool) or value < 0 else 0


def misfit(value: Any, kind: Any, where: str) -> str | None:
    """The first place at which a value is not of its kind, in words; None if it is."""
    if kind is ANY:
        return None
    if isinstance(kind, Late):
        if value is not None and not isinstance(value, kind.type):
            return f"{where} is {_name(value)}, not {_WORDS.get(kind.type, 'a tensor')}"
        if kind.width is not None and isinstance(value, torch.Tensor):
            fits = value.is_floating_point() and value.shape[-1:] == (kind.width,)
            return None if fits else f"{where} is a tensor {tuple(value.shape)} of {value.dtype}"
        return None
    if isinstance(kind, dict):
        return _in_table(value, kind, where)
    if isinstance(kind, list):
        return _in_list(value, kind, where)
    if isinstance(kind, tuple):
        if not isinstance(value, torch.Tensor):
            return f"{where} is {_name(value)}, not a tensor"
        dtype, shape = kind
        if (value.dtype, tuple(value.shape)) != (dtype, shape) and math.prod(shape):
            return f"{where} is a tensor {tuple(value.shape)} of {value.dtype}, not {shape} of {dtype}"
        return None
    if kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        fits = type(value) is (int if kind == 0 else kind)
    if not fits:
        return f"{where} is {_name(value)}, not {_WORDS.get(int if kind == 0 else kind, kind)}"
    if isinstance(value, int) and not (0 if kind == 0 else -(2**63)) <= value < 2**63:
        return f"{where} = {str(value)[:30]} is out of range"
    return None


def _in_table(value: Any, kind: dict[Any, Any], where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where} is {_name(value)}, not a table"
    for key, expected in kind.items():
        if key not in value and isinstance(kind, Loose):
            continue
        if key not in value:
            return f"{where}.{key} is missing"
        if (found := misfit(value[key], expected, f"{where}.{key}")) is not None:
            return found
    return None


def _in_list(value: Any, kind: list[Any], where: str) -> str | None:
    if type(value) is not kind[0]:
        return f"{where} is {_name(value)}, not {_WORDS[kind[0]]}"
    if len(kind) == 1 and len({type(item) for item in value}) > 1:
        return f"{where} has items of several kinds"
    if len(value) < len(kind) - 1 and kind[0] is tuple:
        return f"{where} has {len(value)} entries, not {len(kind) - 1}"
    # Of a list all items are alike, of a tuple each is what it is.
    kinds = kind[1:] if kind[0] is tuple else kind[1:] * len(value)
    found = (misfit(item, each, f"{where}[{i}]") for i, (item, each) in enumerate(zip(value, kinds, strict=False)))
    return next((each for each in found if each is not None), None)


def _name(value: Any) -> str:
    return "nothing" if value is None else _WORDS.get(type(value), type(value).__name__)
