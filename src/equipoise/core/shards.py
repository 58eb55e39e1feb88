"""Tensors that several processes hold together (DTensor): the part of this one, and back.

DTensor is looked up by name: a model that is sharded has imported it, and other programs need not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def is_shard(tensor: object) -> bool:
    """Does this process hold only a part of it?"""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of this process, in the memory where it lies; a plain tensor is its own."""
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return part


def sharded_like(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`part` as this process's part of a tensor that is divided as `like` is; where that is plain, as it is."""
    if not is_shard(like):
        return part
    if part.shape != local(like).shape:
        raise ValueError(f"a shard of shape {tuple(part.shape)} where one of {tuple(local(like).shape)} belongs")
    placed: Any = like  # a DTensor
    made: torch.Tensor = type(placed).from_local(
        part.to(placed.device), placed.device_mesh, placed.placements, run_check=False, shape=placed.shape,
        stride=placed.stride(),
    )  # fmt: skip
    return made


def full(tensor: torch.Tensor) -> torch.Tensor:
    """All of it, a copy; all processes that hold a part call it together."""
    whole: torch.Tensor = tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return whole.detach().clone()


def local_tree(tree: Any) -> Any:
    """Nested dicts and lists with the parts of this process in place of DTensors; the same object if it has none."""
    if is_shard(tree):
        return local(tree)
    if isinstance(tree, dict):
        parts = {key: local_tree(value) for key, value in tree.items()}
        return tree if all(parts[key] is tree[key] for key in tree) else parts
    if isinstance(tree, list):
        items = [local_tree(value) for value in tree]
        return tree if all(a is b for a, b in zip(items, tree, strict=True)) else items
    return tree


def sharded_model_state(state: Mapping[str, Any], model_state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `local_tree` made of a model's state_dict, for its `load_state_dict`."""
    if not any(map(is_shard, model_state.values())):
        return state
    return {
        name: sharded_like(value, model_state[name]) if name in model_state else value for name, value in state.items()
    }


def sharded_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same for an optimizer: what it keeps of a parameter is divided as the parameter, unless it is one number."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(map(is_shard, parameters)):
        return state
    rows = {
        index: {
            name: sharded_like(value, parameters[index]) if isinstance(value, torch.Tensor) and value.dim() else value
            for name, value in row.items()
        }
        for index, row in state["state"].items()
    }
    return {**state, "state": rows}


def sharding_modules(module: nn.Module) -> list[Any]:
    """The modules to which `fully_shard` was applied."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return [] if kind is None else [each for each in module.modules() if isinstance(each, kind)]
