"""From a batch of any structure to a loss: what the model is called with, and where its loss comes from.

    (inputs, targets)      loss(model(inputs), targets)
    (a, b, targets)        loss(model(a, b), targets)
    a dict with labels     loss(model(**inputs), labels)
    without a loss         the loss that model(*batch) or model(**batch) returns

Inputs that are a dict become keyword arguments, a tuple positional ones. A model returns its loss as a scalar, as
`output.loss`, as `output["loss"]` or first in a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..core.errors import UserError

LABELS = ("labels", "label", "targets", "target")  # under which a batch that is a dict holds them


class ForwardPass(NamedTuple):
    """One forward pass."""

    loss: torch.Tensor
    outputs: Any  # logits, where the model says which they are
    targets: Any  # None where the batch has none


class TrainingLoss:
    """A mean loss over a batch, and metrics beside it.

    loss: `loss(outputs, targets)`; None: the model returns its own.
    metrics: `metric(outputs, targets)`, a mean over the batch, by name.
    perplexity: report exp(loss), which a mean over words must be.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], torch.Tensor] | None,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        *,
        perplexity: bool = False,
    ):
        self.loss, self.metrics, self.perplexity = loss, dict(metrics or {}), perplexity

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        return self.forward(model, batch).loss

    def forward(self, model: nn.Module, batch: Any) -> ForwardPass:
        inputs, targets = divided(batch)
        if self.loss is not None:
            if targets is None:
                raise UserError(
                    f"a batch of type {type(batch).__name__} has no targets for the loss function: yield (inputs, "
                    f"targets), or a dict with {LABELS[0]!r}; or pass loss=None if the model returns its loss"
                )
            outputs = logits_of(called(model, inputs))
            return ForwardPass(self.loss(outputs, targets), outputs, targets)
        returned = called(model, batch if isinstance(batch, (dict, tuple, list)) else (batch,))
        return ForwardPass(loss_in(returned), logits_of(returned), targets)


def divided(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets; no targets where the batch does not show any."""
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        return {k: v for k, v in batch.items() if k != name}, None if name is None else batch[name]
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    return batch, None


def called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def loss_in(returned: Any) -> torch.Tensor:
    """The loss that a model returned."""
    first = returned[0] if isinstance(returned, (tuple, list)) and returned else returned
    found = first.get("loss") if isinstance(first, Mapping) else getattr(first, "loss", first)
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        return found.reshape(())
    raise UserError(
        f"loss=None needs a model that returns its loss: a scalar, output.loss or output['loss'], not "
        f"{type(returned).__name__}; pass a loss function, or labels in the batch"
    )


def logits_of(returned: Any) -> Any:
    """What metrics look at: the logits of a model that names them, else what it returned."""
    if isinstance(returned, Mapping):
        return returned.get("logits", returned)
    return getattr(returned, "logits", returned)


def moved(batch: Any, device: torch.device) -> Any:
    """A batch of any structure on a device; what has no device stays as it is."""
    if isinstance(batch, torch.Tensor) or (not isinstance(batch, (tuple, list, dict)) and hasattr(batch, "to")):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def right_answers(forward: ForwardPass) -> tuple[float, int]:
    """Right answers and all answers, where outputs are scores of classes; (0, 0) elsewhere."""
    outputs, targets = forward.outputs, forward.targets
    if not isinstance(targets, torch.Tensor) or not isinstance(outputs, torch.Tensor):
        return 0.0, 0
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return 0.0, 0
    return float((outputs.argmax(-1) == targets).sum()), targets.numel()
