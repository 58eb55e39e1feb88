"""Functions of the user's own, named `package.module:function` where the command takes a name.

The parameters of the function become options: `--data my.module:load --data.size 100` calls `load(size=100)`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import UserError
from .method import Metadata, option


def is_function(name: Any) -> bool:
    """Is this the name of a function rather than that of a method?"""
    return isinstance(name, str) and ":" in name


def imported(name: str) -> Callable[..., Any]:
    """The function behind a name; modules of the current folder are found too."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UserError(f"{name!r}: write package.module:function")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0])
        cause = "there is no such module here" if missing else f"{type(error).__name__}: {error}"
        raise UserError(f"{name}: cannot import {module} ({cause}): check the name and the current folder") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise UserError(f"{name}: {module} has no {attribute}: check the name of the function")
        target = getattr(target, part)
    if not callable(target):
        raise UserError(f"{name}: {attribute} is a {type(target).__name__}, not a function")
    function: Callable[..., Any] = target
    return function


def class_of(base: type, name: str, given: tuple[str, ...] = ()) -> type:
    """A class of an axis whose options are the parameters of a function, except those that are `given` to it."""
    function = imported(name)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # annotations that need names which are not there
        hints = {}
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        help = f"of {name}"
        default = option(help=help) if parameter.default is parameter.empty else option(parameter.default, help=help)
        fields.append((parameter.name, hints.get(parameter.name, Any), default))
    summary = (inspect.getdoc(function) or "a function of yours").splitlines()[0]
    namespace: dict[str, Any] = {"metadata": Metadata(name=name, help=summary), "function": staticmethod(function)}
    namespace["__module__"] = function.__module__
    return dataclasses.make_dataclass(function.__name__, fields, bases=(base,), namespace=namespace)


def failed(name: str, error: Exception, doing: str = "") -> UserError:
    """An error inside the function, as one line with its place in the user's file; the traceback follows as the cause.

    doing: what was asked of it, if not the call itself.
    """
    said = " ".join(str(error).split())
    return UserError(f"{name}{doing} raised {type(error).__name__}: {said}{place(name, error)}")


def place(name: str, error: BaseException) -> str:
    """The last line of the user's own code that an error went through: ` (FILE, line N)`, or nothing."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    if file is None:
        return ""
    folder, found = Path(file).parent, ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts:
            found = f" ({path.relative_to(folder)}, line {frame.lineno})"
    return found
