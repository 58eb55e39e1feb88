"""Does a checkpoint belong to this recipe?"""

from __future__ import annotations

from typing import Any

from ..core.errors import CheckpointError

# What may change between a stop and a resume without changing what the run means.
FREE = (
    *("epochs", "steps", "samples", "budget", "until", "workers", "virtual", "device", "deterministic", "timeout"),
    *("elastic", "deadline", "respawn", "listen", "snapshot_every"),
    *("checkpoint_every", "keep", "log_every", "evaluate_every", "tensorboard", "track", "out", "micro", "nonfinite"),
)


def refuse_mismatch(stored: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse to resume with other choices, and show which."""
    differing = [
        f"{key}: {stored.get(key, 'not set')} in the checkpoint, {present.get(key, 'not set')} now"
        for key in sorted({*stored, *present})
        if stored.get(key) != present.get(key) and key.split(".")[0] not in FREE
    ]
    if differing:
        raise CheckpointError("the checkpoint belongs to another recipe:\n  " + "\n  ".join(differing))
