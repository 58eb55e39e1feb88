"""`optimizer.step(closure)`: the closure computes the gradient once, before the sync sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core.errors import UserError


def closure_first(before: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], Any]:
    """A step pre-hook that evaluates the closure of the step, if there is one, and then calls `before`.

    The optimizer receives the loss in its place. So a step has one evaluation: an optimizer that asks for a second
    one (LBFGS) would get a gradient that no sync has combined.
    """

    def hook(optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = next((given for given in (*args[1:], kwargs.get("closure")) if given is not None), None)
        if closure is None:
            before(optimizer, args, kwargs)
            return None
        with torch.enable_grad():
            loss = closure()
        before(optimizer, args, kwargs)
        asked = 0

        def evaluated() -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise UserError(
                    f"{type(optimizer).__name__} evaluates its closure several times in one step, and workers can "
                    "combine one gradient per step only: use an optimizer that evaluates it once"
                )
            return loss

        return args[:1], {**kwargs, "closure": evaluated}

    return hook
