"""What every choice on every axis has in common: options, binding to a worker, named state.

A method is a dataclass. Its constructor only stores and checks options, so its `repr` builds it again and one
object can describe many workers. `bind(context)` returns the copy that one worker uses; its state is made by
`init_state`, listed in `STATE`, and travels through `state_dict`. What the registry, the citations and the cards say
of a method stands in its file, as `metadata`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import numbers
import operator
import typing
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeVar

from .context import Context
from .errors import UserError

Self = TypeVar("Self", bound="Method")


class Metadata(NamedTuple):
    """What is said of a method wherever it is listed.

    Literals only: the registry reads it without importing the file.
    """

    name: str  # on the command line
    help: str  # one line
    cites: tuple[str, ...] = ()  # keys of config/citations.bib; none for common knowledge


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """A field of a method: its default, one line of help, and the range that `Method` enforces."""
    limits = {"help": help, "least": least, "above": above, "most": most, "below": below, "choices": choices}
    if isinstance(default, (list, dict, set, Configurable)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=limits)
    return dataclasses.field(default=default, metadata=limits)


@dataclasses.dataclass
class Configurable(ABC):
    """A dataclass whose options are checked on construction; the base of methods, data sets and models."""

    axis: ClassVar[str] = ""  # declared by the base class of each axis
    metadata: ClassVar[Metadata]  # declared by each method that has a name on the command line
    exact: ClassVar[bool] = True  # does a run on processes give the bits of one on virtual workers?

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _checked(type(self).__name__, field, hints.get(field.name, Any), getattr(self, field.name))
            setattr(self, field.name, value)
        self.check()

    def check(self) -> None:  # noqa: B027  (an empty hook, not a concrete behaviour)
        """Refuse combinations of options that make no sense, with a `UserError` that says the fix."""

    def options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass
class Method(Configurable):
    """A choice on an axis. Final here: binding and state. A method fills `init_state`."""

    STATE: ClassVar[tuple[str, ...]] = ()  # attributes that a checkpoint keeps
    LATE: ClassVar[dict[str, type]] = {}  # what becomes of entries that are None at first; of STATE itself: tensors
    HOST: ClassVar[tuple[str, ...]] = ()  # of STATE, whose tensors stay with the CPU wherever the model is
    HEALTH: ClassVar[tuple[str, ...]] = ()  # attributes (numbers) that the events show
    # When workers are lost or join, state starts afresh, except for
    COMMON: ClassVar[tuple[str, ...]] = ()  # attributes that are the same on all workers: newcomers receive them,
    OWN: ClassVar[tuple[str, ...]] = ()  # and attributes of one worker that stay true: it keeps them

    @abstractmethod
    def init_state(self) -> None:
        """Make the state of a fresh worker; `self.context` is set."""

    def bind(self: Self, context: Context) -> Self:
        """The copy of this method that one worker owns."""
        bound = copy.copy(self)
        bound._use(context)
        bound.init_state()
        return bound

    def _use(self, context: Context) -> None:
        self._context = context

    @property
    def is_bound(self) -> bool:
        """Does this copy belong to a worker?"""
        return hasattr(self, "_context")

    @property
    def context(self) -> Context:
        """What this worker's copy may use."""
        return self._context

    def state_dict(self) -> dict[str, Any]:
        import torch

        values = {name: getattr(self, name) for name in self.STATE}
        return {k: v.detach().clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v) for k, v in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.STATE):
            raise UserError(
                f"{type(self).__name__} keeps {sorted(self.STATE)} but the checkpoint has {sorted(state)}: "
                "it was written by another version or another method"
            )
        for name, value in state.items():
            self.put(name, copy.deepcopy(value))

    def put(self, name: str, value: Any) -> None:
        """Set a part of the state: its tensors belong on the device of the model, unless they are in `HOST`."""
        flat = self._context.flat
        if flat is not None and flat.x.device.type != "cpu":
            from .device import CPU, on_device

            value = on_device(value, CPU if name in self.HOST else flat.x.device)
        setattr(self, name, value)


def _checked(owner: str, field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    """The value as its type hint wants it, or a UserError that names the option and what it takes."""
    where = f"{owner}({field.name}={value!r})"
    refuse_endless(value, where)
    value = _coerced(where, hint, value)
    limits = field.metadata
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if math.isnan(number):
            raise UserError(f"{where}: not a number")
        for key, allows, words in (
            ("least", operator.ge, "at least"),
            ("above", operator.gt, "above"),
            ("most", operator.le, "at most"),
            ("below", operator.lt, "below"),
        ):
            limit = limits.get(key)
            if limit is not None and not allows(number, limit):
                raise UserError(f"{where}: {field.name} must be {words} {limit}")
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{where}: holds a null byte")
    choices = limits.get("choices")
    if choices is not None and value not in choices:
        from .errors import did_you_mean

        raise UserError(f"{where}: {did_you_mean(str(value), [str(c) for c in choices])}")
    return value


def refuse_endless(value: Any, where: str) -> None:
    """Whole numbers travel as 64 bits; a larger one was mistyped."""
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise UserError(f"{where}: out of range, whole numbers go up to 2^63 - 1")


def _coerced(where: str, hint: Any, value: Any) -> Any:
    """Accept an int where a float is wanted, a list where a tuple is, numbers and arrays of numpy; refuse others."""
    import types

    if hint is Any or isinstance(hint, str):
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for arm in sorted(args, key=lambda a: a is float):
            try:
                return _coerced(where, arm, value)
            except UserError:
                continue
        raise UserError(f"{where}: takes {_words(hint)}")
    if hint is type(None):
        if value is None:
            return None
    elif origin in (list, tuple):
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, (list, tuple)):
            arm = args[0] if args else Any
            return origin(_coerced(where, arm, item) for item in value)
    elif origin is dict:
        if isinstance(value, dict):
            return value
    elif hint is float:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            return float(value)
    elif hint is int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
    elif isinstance(hint, type):
        if isinstance(value, hint):
            return value
    else:
        return value
    raise UserError(f"{where}: takes {_words(hint)}, not {type(value).__name__}")


def _words(hint: Any) -> str:
    """What an option takes, for people who know no type hints."""
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "none"}
    if hint in plain:
        return plain[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, tuple):
        return f"a list, each item {_words(args[0])}" if args else "a list"
    if args and origin is not dict:
        *most, last = (_words(arm) for arm in args)
        return f"{', '.join(most)} or {last}"
    return str(getattr(hint, "__name__", hint))
