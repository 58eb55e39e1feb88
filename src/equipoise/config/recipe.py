"""A recipe: one choice per axis, and the plain settings. From defaults, a TOML file and flags, in that order.

    sync = "detag"            # a name,
    period = 8                # a number where that says it all: every 8 steps; `batch` takes one too
    workers = 8
    [partition]               # or a table with options
    name = "dirichlet"
    alpha = 0.1

Reading needs no torch; `resolved` loads it: only the classes know their options and defaults.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import UserError, did_you_mean
from ..core.toml import read_toml
from . import defaults, shipped
from .fingerprint import flattened
from .registry import AXES, names, takes_function
from .settings import LENGTHS, SETTINGS, checked

# The option that a bare number stands for.
SHORT = {"period": ("every", "steps"), "batch": ("fixed", "size")}
MODELS = {
    "digits": "mlp",
    "synthetic": "logistic",
    "fashion-mnist": "lenet",
    "cifar10": "lenet",
    "images": "lenet",
    "text": "transformer",
    "tsv": "lstm",
}


class Choice(NamedTuple):
    """A name on an axis with the options that were given for it; no name means the default one."""

    name: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed in place)


@dataclass
class Recipe:
    """What was asked for. What was left out is decided late: it may depend on other choices."""

    choices: dict[str, Choice] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """From a file, or from the name of a recipe that comes with the package."""
        return cls.from_dict(read_toml(shipped.find("recipe", path)), str(path))

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "recipe") -> Recipe:
        return cls().merged(table, where)

    def merged(self, table: dict[str, Any], where: str = "recipe") -> Recipe:
        """This recipe with the entries of `table` on top; `where` names their origin in errors."""
        choices, settings = dict(self.choices), dict(self.settings)
        for given, value in table.items():
            key, place = given.replace("-", "_"), _place(where, given)
            if key in AXES:
                choices[key] = _choice(key, value, choices.get(key, Choice()), place)
            elif key in SETTINGS:
                settings[key] = checked(key, value, place)
            elif key != "versions":
                hint = did_you_mean(key, [*AXES, *SETTINGS])
                raise UserError(f"{place}: unknown key: {hint}")
        return Recipe(choices, settings)

    def without(self, *settings: str) -> Recipe:
        """This recipe with some settings back at their defaults."""
        return Recipe(dict(self.choices), {k: v for k, v in self.settings.items() if k not in settings})

    def chosen(self, axis: str) -> Choice:
        """The choice on an axis; where none was made, the default that fits the others."""
        choice = self.choices.get(axis, Choice())
        return Choice(choice.name or self._default(axis), choice.options)

    def _default(self, axis: str) -> str:
        if axis == "sync":
            period = self.chosen("period")
            return defaults.sync_name(period.name == "every" and period.options.get("steps", 1) == 1)
        if axis == "model":
            data = self.chosen("data")
            assert data.name is not None
            return "logistic" if data.options.get("features") == "bag" else MODELS.get(data.name, "mlp")
        return defaults.NAMES[axis]

    def plain(self) -> dict[str, Any]:
        """Every plain setting with its value."""
        settings = {name: self.settings.get(name, setting.default) for name, setting in SETTINGS.items()}
        if settings["cluster"] is not None:
            settings["cluster"] = os.path.abspath(shipped.find("cluster", settings["cluster"]))
        if settings["workers"] is None:
            settings["workers"] = defaults.WORKERS
            if settings["cluster"] is not None:
                from ..simulate.cluster import Cluster

                settings["workers"] = Cluster.load(settings["cluster"]).size
        if settings["virtual"] is None:
            settings["virtual"] = settings["cluster"] is not None
        if all(settings[name] is None for name in LENGTHS if name != "until"):
            settings["epochs"] = defaults.EPOCHS if settings["until"] is None else defaults.EPOCHS_TO_TARGET
        if settings["lr"] is None:
            settings["lr"] = defaults.LEARNING_RATE[settings["optimizer"]]
        return settings

    def resolved(self) -> dict[str, Any]:
        """Every choice with the value of every option, defaults included: settings, then a table per axis."""
        from .build import described

        return self.plain() | described(self)

    def flat(self) -> dict[str, Any]:
        """`resolved` in one level, such as "sync.rounds": 4; what a checkpoint is compared by."""
        return flattened(self.resolved())

    def text(self) -> str:
        """The resolved recipe as TOML, with the versions in use; loading it gives the same recipe."""
        import tomli_w

        return tomli_w.dumps(self.table())

    def table(self) -> dict[str, Any]:
        """The resolved recipe in plain values, with the versions in use; `from_dict` gives the same recipe."""
        table = self.resolved() | {"versions": versions()}
        return {k: _without_none(v) for k, v in table.items() if v is not None}

    def dump(self, path: str | Path) -> None:
        """Write `text` to a file, whole or not at all."""
        path = Path(path)
        part = path.with_name(f".{path.name}.partial")
        try:
            part.write_text(self.text(), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another folder") from None


def versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    from .. import __version__

    return {
        "equipoise": __version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def _place(where: str, key: str) -> str:
    """How an entry is called in errors: as a flag, or with its file."""
    return f"--{key.replace('_', '-')}" if where == "flags" else f"{where}: {key}"


def _choice(axis: str, value: Any, before: Choice, where: str) -> Choice:
    """What `value` says about an axis, on top of what was said before."""
    options: dict[str, Any] = {}
    name = value
    if isinstance(value, dict):
        options = {k.replace("-", "_"): v for k, v in value.items() if k != "name"}
        name = value.get("name")
    if name is None:
        return Choice(before.name, before.options | options)
    if axis in SHORT and isinstance(name, (int, float, list)) and not isinstance(name, bool):
        short, option = SHORT[axis]
        return Choice(short, {option: name} | options)
    if not isinstance(name, str):
        takes = "a name or a number" if axis in SHORT else "a name"
        raise UserError(f"{where} = {name!r}: takes {takes}, or a table with `name` and options")
    own = takes_function(axis, name)
    name = name if own else name.replace("_", "-")
    if not own and name not in names(axis):
        raise UserError(f"{where}: unknown {axis} {name!r}: {did_you_mean(name, names(axis))}")
    # The options of another method mean nothing for this one.
    kept = before.options if before.name in (None, name) else {}
    return Choice(name, kept | options)


def _without_none(value: Any) -> Any:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
