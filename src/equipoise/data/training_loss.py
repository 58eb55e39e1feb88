"""From a batch of any structure to a loss: what the model is called with, and where its loss comes from.

    (inputs, targets)      loss(model(inputs), targets)
    (a, b, targets)        loss(model(a, b), targets)
    a dict with labels     loss(model(**inputs), labels)
    without a loss         the loss that model(*batch) or model(**batch) returns

Inputs that are a dict become keyword arguments, a tuple positional ones. A model returns its loss as a scalar, as
`output.loss`, as `output["loss"]` or first in a tuple.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
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
        try:
            if self.loss is None:
                returned = called(model, batch if isinstance(batch, (dict, tuple, list)) else (batch,))
                return ForwardPass(loss_in(returned), logits_of(returned), targets)
            if targets is None:
                raise UserError(
                    f"a batch of type {type(batch).__name__} has no targets for the loss function: yield (inputs, "
                    f"targets), or a dict with {LABELS[0]!r}; or pass loss=None if the model returns its loss"
                )
            outputs = logits_of(called(model, inputs))
            loss = self.loss(outputs, targets)
        except RuntimeError as error:
            reason = mismatch(error, model, inputs, targets)
            if reason is None:
                raise
            raise UserError(reason) from error
        if loss.numel() != 1:
            raise UserError(
                f"the loss has the shape {list(loss.shape)}: return one number, the mean over the batch "
                "(reduction='mean')"
            )
        return ForwardPass(loss, outputs, targets)


def divided(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets; no targets where the batch does not show any."""
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        return {k: v for k, v in batch.items() if k != name}, None if name is None else batch[name]
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    return batch, None


def called(model: nn.Module, inputs: Any) -> Any:
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    if not isinstance(positional, (tuple, list)):
        positional = (positional,)
    try:
        return model(*positional, **named)
    except TypeError as error:
        reason = misfit(model, positional, named)
        if reason is None:
            raise
        raise UserError(reason) from error


def misfit(model: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """Why a model cannot be called like that; None where its arguments are right."""
    try:
        signature = inspect.signature(model.forward)
        signature.bind(*positional, **named)
    except TypeError as error:
        given = ", ".join(named) if named else f"{len(positional)} in order"
        return (
            f"{type(model).__name__}.forward{signature} does not take the inputs of a batch ({given}): {error}; change "
            "what the data set yields, or the model"
        )
    except ValueError:  # a forward without a signature
        return None
    return None


def mismatch(error: RuntimeError, model: nn.Module, inputs: Any, targets: Any) -> str | None:
    """The dtypes that an error of torch is about, with the fix; None where it is about something else."""
    text = str(error)
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    parts = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    parts = parts if isinstance(parts, (tuple, list)) else [parts]
    other = {part.dtype for part in parts if isinstance(part, torch.Tensor)} - {own}
    if "dtype" in text and own is not None and other and "target" not in text:
        return (
            f"the inputs are {' and '.join(sorted(map(str, other)))} and the model is {own} ({text.splitlines()[0]}): "
            f"convert one of them, such as inputs.to({own})"
        )
    if isinstance(targets, torch.Tensor) and "target" in text and "Long" in text and targets.dtype != torch.int64:
        return f"the targets are {targets.dtype} and the loss function takes torch.int64: pass targets.long()"
    return None


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


def number(name: str, value: Any) -> float:
    """What a metric returned, as a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        what = f"the shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"type {type(value).__name__}"
        raise UserError(f"the metric {name!r} returned a value of {what}: return one number, a mean") from None


def right_answers(forward: ForwardPass) -> tuple[float, int]:
    """Right answers and all answers, where outputs are scores of classes; (0, 0) elsewhere."""
    outputs, targets = forward.outputs, forward.targets
    if not isinstance(targets, torch.Tensor) or not isinstance(outputs, torch.Tensor):
        return 0.0, 0
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return 0.0, 0
    return float((outputs.argmax(-1) == targets).sum()), targets.numel()
