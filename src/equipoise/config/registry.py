"""Names on the command line, and the class behind each. Python users pass objects and need none of this.

A method declares its name, help and references in its own file (`metadata = Metadata(...)`). This module reads those
declarations from the source without importing it, so that `equipoise list` answers before torch could be loaded.
Methods of other packages come in by `register`, or by an entry point of the group `equipoise.methods`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core.errors import UserError, did_you_mean
from ..core.user_function import is_function

AXES = ("partition", "order", "batch", "period", "topology", "sync", "wire", "data", "model")
GROUP = "equipoise.methods"  # of entry points

_PACKAGE = Path(__file__).parent.parent
_FOLDERS = {"model": "models"}  # where the folder is not named like its axis

Class = TypeVar("Class", bound=type)


class Entry(NamedTuple):
    axis: str
    name: str
    target: str  # "package.module:Class"
    help: str
    cites: tuple[str, ...] = ()


_registered: dict[tuple[str, str], tuple[Entry, type]] = {}
_loaded = False  # were the entry points of installed packages looked up?
_broken: list[str] = []  # a line for each of them that could not be loaded


def register(cls: Class) -> Class:
    """Give a method of your own a name on the command line and in recipes; usable as a decorator.

    The axis is that of its base class (`eq.sync.Sync`, `eq.order.Order`, ...), the name that of its `metadata`.
    A name that is taken is refused.
    """
    metadata, axis = getattr(cls, "metadata", None), getattr(cls, "axis", "")
    if axis not in AXES:
        raise UserError(
            f"{cls.__name__} is on no axis: derive it from eq.sync.Sync, eq.order.Order or another base class"
        )
    if metadata is None:
        raise UserError(f"{cls.__name__} has no name: add `metadata = Metadata(name=..., help=...)` to the class")
    key, entry = (axis, metadata.name), Entry(axis, metadata.name, _target(cls), metadata.help, tuple(metadata.cites))
    known = _known().get(key)
    if known is not None and known.target != entry.target:
        raise UserError(f"{axis} {metadata.name!r} is {known.target} already: choose another name for {cls.__name__}")
    _registered[key] = entry, cls
    return cls


def names(axis: str) -> list[str]:
    """The names known on an axis."""
    return [entry.name for entry in entries(axis)]


def entries(axis: str | None = None) -> list[Entry]:
    """Every method, or those of one axis, sorted by name within an axis."""
    rows = [entry for entry in _table().values() if axis in (None, entry.axis)]
    return sorted(rows, key=lambda entry: (AXES.index(entry.axis), entry.name))


def find(axis: str, name: str) -> Entry:
    """The entry of a name; an unknown one is refused with the nearest known one."""
    entry = _table().get((axis, name.replace("_", "-")))
    if entry is None:
        raise UserError("; ".join([f"unknown {axis} {name!r}: {did_you_mean(name, names(axis))}", *_broken]))
    return entry


def get(axis: str, name: str) -> type:
    """The class behind a name, or behind `package.module:function` for data and models."""
    if takes_function(axis, name):
        made: type = importlib.import_module(f"equipoise.{_FOLDERS.get(axis, axis)}.user").named(name)
        return made
    entry = find(axis, name)
    if (axis, entry.name) in _registered:
        return _registered[axis, entry.name][1]
    module, cls = entry.target.split(":")
    target: type = getattr(importlib.import_module(module), cls)
    return target


def takes_function(axis: str, name: str) -> bool:
    """Does this name a function of the user's own?"""
    return axis in ("data", "model") and is_function(name)


def folder_of(axis: str) -> Path:
    """Where the methods of an axis that come with Equipoise live."""
    return _PACKAGE / _FOLDERS.get(axis, axis)


def name_of(method: Any) -> str:
    """The name of an object on the command line, or that of its class."""
    metadata = getattr(type(method), "metadata", None)
    return metadata.name if metadata is not None else type(method).__name__


def exports(axis: str) -> dict[str, str]:
    """Class name -> module of every method of an axis that comes with Equipoise."""
    return {e.target.split(":")[1]: e.target.split(":")[0] for e in _built_in().values() if e.axis == axis}


def _table() -> dict[tuple[str, str], Entry]:
    _load_entry_points()
    return _known()


def _known() -> dict[tuple[str, str], Entry]:
    return _built_in() | {key: entry for key, (entry, _) in _registered.items()}


@functools.cache
def _built_in() -> dict[tuple[str, str], Entry]:
    return {
        (axis, entry.name): entry
        for axis in AXES
        for path in sorted(folder_of(axis).glob("*.py"))
        for entry in _declared(axis, path)
    }


def _load_entry_points() -> None:
    """Register the methods of installed packages, once. A broken one is reported in one line; all others work."""
    global _loaded
    if _loaded:
        return
    _loaded = True  # before they are loaded: their modules may ask the registry
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            register(point.load())
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            _broken.append(
                f"the entry point {point.name} = {point.value} ({GROUP}) cannot be loaded: {cause}: fix or uninstall "
                "the package that declares it"
            )
            logging.getLogger("equipoise").warning(_broken[-1])


def _declared(axis: str, path: Path) -> Iterator[Entry]:
    """The methods that a file declares, from its syntax tree."""
    text = path.read_text(encoding="utf-8")
    if "= Metadata(" not in text:
        return
    for node in ast.parse(text).body:
        for line in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == "metadata":
                assert isinstance(node, ast.ClassDef)
                assert isinstance(line.value, ast.Call)
                said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in line.value.keywords}
                module = ".".join(("equipoise", *path.relative_to(_PACKAGE).with_suffix("").parts))
                yield Entry(axis, said["name"], f"{module}:{node.name}", said["help"], said.get("cites", ()))


def _target(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def exporter(axis: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for the package of an axis: every method under its class name, imported when it is
    used.
    """
    package = f"equipoise.{_FOLDERS.get(axis, axis)}"

    def getattr_(name: str) -> Any:
        module = exports(axis).get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    def dir_() -> list[str]:
        # What a user may choose or build on: neither the modules that were imported so far nor what they use.
        held = vars(importlib.import_module(package)).items()
        return sorted({*(name for name, value in held if isinstance(value, type)), *exports(axis)})

    return getattr_, dir_
