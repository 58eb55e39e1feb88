"""Trained weights as a file of their own: what a user loads into the plain model, without Equipoise.

RUN/model.pt    the state_dict of the workers' mean model, written when a run ends or is stopped
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from ..core.errors import CheckpointError, UserError
from ..core.extras import require
from ..core.writing import writing

FORMATS = ("pt", "safetensors")
_OTHERS = (".gguf", ".h5", ".npz", ".onnx", ".pb", ".tflite")  # what other programs would take the file for


def format_of(path: Path) -> str:
    """The format that the name of a file asks for."""
    if path.suffix.lower() in _OTHERS:
        raise UserError(f"{path}: {path.suffix} cannot be written: use a name that ends in .pt or .safetensors")
    return "safetensors" if path.suffix == ".safetensors" else "pt"


def save_weights(state: dict[str, Any], path: Path, format: str | None = None) -> None:
    """Write a state_dict, whole or not at all."""
    format = format or format_of(path)
    part = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if format == "safetensors":
                require("safetensors", "safetensors", "the format safetensors")
                from safetensors.torch import save

                # The format stores no shared memory: tied weights become copies.
                part.write_bytes(save({name: t.detach().cpu().clone().contiguous() for name, t in state.items()}))
            else:
                torch.save(state, part)
            os.replace(part, path)
    except UserError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def load_weights(path: Path) -> dict[str, Any]:
    """A state_dict that `save_weights` wrote as `pt`; no code in the file is run."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}): export from a checkpoint again") from None
    return state
