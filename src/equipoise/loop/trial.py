"""One forward pass before a run with functions of the user's own, so that what does not fit is refused at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..core.errors import UserError
from ..core.random import rng_state, set_rng_state
from ..core.user_function import failed, is_function, place
from ..data.training_loss import divided
from .job import Job

_EXAMPLES = 2  # BatchNorm needs more than one


def try_functions(job: Job, *, data: str, model: str, loss: str | None) -> None:
    """Refuse a model that cannot take a batch, or a loss that cannot take its outputs.

    Only on the CPU: an accelerator that is started here could not be used by forked workers.
    """
    if not any(map(is_function, (data, model, loss))) or job.device.type != "cpu":
        return
    kept = rng_state()
    try:
        try:
            batch = job.train.batch(np.arange(min(_EXAMPLES, len(job.train))))
        except UserError:
            raise
        except Exception as error:
            raise failed(data, error, ": its first examples") from error
        try:
            job.training_loss(job.model().train(), batch)
        except (UserError, MemoryError):
            raise
        except Exception as error:
            raise UserError(_misfit(error, batch, data, model, loss)) from error
    finally:
        set_rng_state(kept)


def _misfit(error: Exception, batch: Any, data: str, model: str, loss: str | None) -> str:
    inputs, targets = divided(batch)
    own = [name for name in (loss, model, data) if name is not None and is_function(name)]
    where = next(filter(None, (place(name, error) for name in own)), "")
    named = f" and loss {loss}" if loss is not None else ""
    said = " ".join(str(error).split())
    shapes = f"inputs {_shape(inputs)}, targets {_shape(targets)}"
    return (
        f"model {model}{named} cannot be trained on data {data}: {type(error).__name__}: {said}{where}; a batch of "
        f"{_EXAMPLES} examples has {shapes}: change the model or what the data yields"
    )


def _shape(value: Any) -> str:
    """What a person needs to see of a part of a batch."""
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_shape(part)}' for name, part in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_shape, value))})"
    return type(value).__name__
