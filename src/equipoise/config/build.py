"""From a recipe to objects: the methods, the data, the model, and the job that holds them all."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core.errors import UserError, did_you_mean
from ..core.method import Plain
from ..core.torchrun import under_torchrun
from ..data.base import Loaded
from ..data.source import Source
from ..loop.job import Job, Length
from ..loop.lr_schedule import Schedule
from ..loop.until import Until
from ..simulate.cluster import Cluster, duration
from . import registry

if TYPE_CHECKING:
    from .recipe import Choice, Recipe

_DTYPES = {"none": None, "bfloat16": torch.bfloat16}


def objects(recipe: Recipe) -> dict[str, Any]:
    """One object per axis; no topology where nothing asks for one."""
    found = {axis: construct(axis, recipe.chosen(axis)) for axis in registry.AXES if axis not in ("topology", "sync")}
    cls, extra = registry.get("sync", recipe.chosen("sync").name or ""), {}
    if "topology" in recipe.choices or needs_topology(cls):
        found["topology"] = construct("topology", recipe.chosen("topology"))
        if takes_topology(cls):
            extra["topology"] = found["topology"]
    found["sync"] = construct("sync", recipe.chosen("sync"), **extra)
    if takes_topology(cls):
        found["topology"] = found["sync"].topology
    return found


def takes_topology(cls: type) -> bool:
    return any(field.name == "topology" for field in dataclasses.fields(cls))


def needs_topology(cls: type) -> bool:
    return any(field.name == "topology" and _required(field) for field in dataclasses.fields(cls))


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
    missing = [n for n, field in fields.items() if _required(field) and n not in values]
    if missing:
        raise UserError(f"{axis} {name} needs {' and '.join(f'--{axis}.{n}' for n in missing)}")
    return cls(**values)


def fitted(hint: Any, field: dataclasses.Field, value: Any) -> Any:
    """What a shell or TOML cannot say directly: no value, a list of one, a text that looks like a number."""
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
    found = objects(recipe)
    tables = {}
    for axis in registry.AXES:
        if axis not in found:
            continue
        chosen = found[axis]
        fields = {field.name: field for field in dataclasses.fields(chosen)}
        options = {
            name: _tomlable(value, fields[name]) for name, value in chosen.options().items() if name != "topology"
        }
        tables[axis] = {"name": registry.name_of(chosen)} | options
    return tables


def assemble(recipe: Recipe) -> tuple[Job, dict[str, Any]]:
    """Everything that decides the run, checked as far as possible without starting it."""
    plain, found = recipe.plain(), objects(recipe)
    if "topology" in recipe.choices and not takes_topology(type(found["sync"])):
        sync, topology = (registry.name_of(found[axis]) for axis in ("sync", "topology"))
        warn(f"sync {sync} does not use a topology: --topology {topology} changes nothing")
    length = Length(
        plain["epochs"],
        plain["steps"],
        plain["samples"],
        duration(plain["budget"], "budget") if plain["budget"] is not None else None,
    )
    cluster = Cluster.load(plain["cluster"]) if plain["cluster"] is not None else None
    if plain["tensorboard"] and importlib.util.find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs a package that is not installed: pip install tensorboard")
    optimizer, scheduler = optimizer_of(plain), scheduler_of(plain)
    loaded = found["data"].load()
    job = Job(
        model=seeded(found["model"], loaded, plain["seed"]),
        loss=LOSSES[loaded.task],
        train=Source(loaded.train),
        test=Source(loaded.test),
        length=length,
        optimizer=optimizer,
        scheduler=scheduler,
        until=Until.parse(plain["until"]) if plain["until"] is not None else None,
        **{axis: found[axis] for axis in ("partition", "order", "batch", "period", "sync")},
        **{name: plain[name] for name in ("buffers", "seed", "drop_last", "micro", "clip", "sam", "nonfinite")},
        slow=factors(plain["slow"]) if plain["slow"] is not None else None,
        **{name: plain[name] for name in ("checkpoint_every", "keep", "evaluate_every", "log_every", "tensorboard")},
        autocast=_DTYPES[plain["autocast"]],
        folder=Path(plain["out"]) if plain["out"] is not None else None,
        fingerprint=recipe.flat(),
        described=cluster is not None,
    )
    job.model()  # a model that does not fit the data is refused here, once, and not by every worker
    start = {name: plain[name] for name in ("workers", "virtual", "deterministic", "timeout")}
    return job, start | {"cluster": cluster}


def seeded(model: Any, loaded: Loaded, seed: int) -> typing.Callable[[], nn.Module]:
    """A factory that gives the same model on every worker and leaves the worker's own random stream alone."""

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return model.build(loaded)

    return make


def language_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[B, T, V] logits against [B, T] words."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


LOSSES: dict[str, typing.Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "classify": nn.functional.cross_entropy,
    "regress": nn.functional.mse_loss,
    "language": language_loss,
}


def optimizer_of(plain: dict[str, Any]) -> typing.Callable[[Any], torch.optim.Optimizer]:
    kind, lr, decay = plain["optimizer"], plain["lr"], plain["weight_decay"]
    if kind != "sgd":
        for name in ("momentum", "nesterov"):
            if plain[name]:
                raise UserError(f"--{name} belongs to sgd: leave it out with --optimizer {kind}")
        cls = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
        return lambda parameters: cls(parameters, lr=lr, weight_decay=decay)
    if plain["nesterov"] and not plain["momentum"]:
        raise UserError("--nesterov needs a momentum: add --momentum 0.9")
    momentum, nesterov = plain["momentum"], plain["nesterov"]
    return lambda parameters: torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )


def scheduler_of(plain: dict[str, Any]) -> typing.Callable[[torch.optim.Optimizer], Any] | None:
    kind, warmup, scaling = plain["schedule"], plain["warmup"], plain["scaling"]
    if kind == "constant" and not warmup and scaling == "none":
        return None
    return lambda optimizer: Schedule(optimizer, kind, warmup, scaling)


def factors(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--slow {text}: takes a number for each worker, such as 1,1,2,4") from None


def warn(text: str) -> None:
    import os

    if not under_torchrun() or os.environ["RANK"] == "0":
        print(f"equipoise: note: {text}", file=sys.stderr)


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _tomlable(value: Any, field: dataclasses.Field) -> Any:
    if value is None and not _required(field) and field.default is not None:
        return "none"  # left out, it would be read back as the default
    if isinstance(value, (list, tuple)):
        return [_tomlable(item, field) for item in value]
    if isinstance(value, Plain):
        return repr(value)
    return str(value) if isinstance(value, Path) else value
