"""Is what a checkpoint holds the state of a worker? Asked once, before any of it is put back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.kinds import ANY, Late, Loose, kind_of, misfit
from ..core.errors import CheckpointError, UserError, WorkerError
from ..core.method import Method
from ..core.shards import local

_COUNTERS = ("clock", "ledger", "now")
_OF_TORCH = ("optimizer", "scheduler", "scaler")  # whose versions differ in the keys they keep

_REACHED = {
    "metric": str,
    "target": float,
    **dict.fromkeys(("step", "samples", "rounds", "bytes"), 0),
    "seconds": float,
}


class Misfit(Exception):
    pass


@contextlib.contextmanager
def reading(path: Path, rank: int) -> Iterator[None]:
    """Put back what a file holds. Whatever goes wrong with contents that look right is the fault of the file."""
    where = f"checkpoint {path} is damaged: worker-{rank}.pt"
    try:
        yield
    except (UserError, WorkerError):
        raise
    except Misfit as error:
        raise CheckpointError(f"{where}: {error}") from None
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{where} does not hold the state of a worker ({what})") from error


def refuse_other_contents(
    state: dict[str, Any], fresh: dict[str, Any], optimizer: torch.optim.Optimizer, methods: dict[str, Method]
) -> None:
    """fresh: the state of a worker that has taken no step. methods: by their place in it, those whose states it has."""
    kinds = kind_of({name: value for name, value in fresh.items() if name not in _OF_TORCH})
    kinds |= {name: kind_of(fresh[name], Loose) for name in _OF_TORCH if name in fresh}
    tensors, kinds["model"] = kinds["model"], {}  # which tensors there are is for torch to compare,
    kinds["rng"] = {}  # and the generators refuse what they cannot be set to
    # `Position` checks these; they were lists once.
    position = kinds.get("sampler", kinds).get("position") or {}
    position.update({name: ANY for name in ("sequence", "block") if name in position})
    for place, method in methods.items():
        *above, axis = place.split(".")
        table = kinds[above[0]] if above else kinds
        # Vectors of syncs and wires are as long as the model.
        flat = method.context.flat if axis in ("sync", "wire") else None
        table[axis] = _with_late(table[axis], method, None if flat is None else len(flat))
    if state.get("reached") is not None:
        kinds["reached"] = _REACHED
    if (problem := misfit(state, kinds, "")) is None:
        counters = {name: state[name] for name in _COUNTERS if name in kinds}
        problem = _not_finite(counters, "")
        if problem is None and kind_of(state["model"]) != tensors:
            problem = _other_dtype(state["model"], tensors)
        elif problem is None:
            problem = _odd_one(state["optimizer"], optimizer)
    if problem is not None:
        raise Misfit(problem.removeprefix("."))


def _with_late(kind: Any, method: Method, width: int | None, name: str = "") -> Any:
    """An entry of a method's state that it does not have at first is a vector, unless the method says otherwise."""
    if isinstance(kind, dict):
        return {key: _with_late(item, method, width, key) for key, item in kind.items()}
    if kind is not ANY or (name not in method.STATE and name not in method.LATE):
        return kind
    return Late(method.LATE.get(name, torch.Tensor), width)


def _not_finite(value: Any, where: str) -> str | None:
    if isinstance(value, dict):
        found = (_not_finite(item, f"{where}.{name}") for name, item in value.items())
        return next((each for each in found if each is not None), None)
    return f"{where} = {value}" if isinstance(value, float) and not math.isfinite(value) else None


def _other_dtype(model: dict[str, Any], kinds: dict[str, Any]) -> str | None:
    """torch refuses other tensors, but would convert these without a word."""
    for name, kind in kinds.items():
        if name in model and (not isinstance(model[name], torch.Tensor) or model[name].dtype != kind[0]):
            return f"model.{name} is no tensor of {kind[0]}"
    return None


def _odd_one(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> str | None:
    """What an optimizer keeps of one parameter is of another kind than what it keeps of the others.

    It may be anything, but it is the same thing for all of them, and as large as the parameter or not for all.
    """
    parameters = [local(p) for group in optimizer.param_groups for p in group["params"]]
    seen: dict[str, tuple[type, bool]] = {}
    for index, entries in state["state"].items():
        where = f"optimizer.state.{index}"
        if not isinstance(index, int) or not 0 <= index < len(parameters) or not isinstance(entries, dict):
            return f"{where} belongs to no parameter"
        for name, value in entries.items():
            if value is None:
                continue
            shaped = isinstance(value, torch.Tensor) and value.shape == parameters[index].shape
            if seen.setdefault(name, (type(value), shaped)) != (type(value), shaped):
                return f"{where}.{name} is not what it is for the other parameters"
    return None
