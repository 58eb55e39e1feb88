"""What torchrun (or any launcher that sets RANK and WORLD_SIZE) tells this process."""

from __future__ import annotations

import os

MOST_WORKERS = 100_000  # whoever asks for more has mistyped a number, and would wait for it


def under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """The rank that the launcher gave this process; 0 where there is none."""
    return int(os.environ["RANK"]) if under_torchrun() else 0


def first_on_host() -> bool:
    """Is this the first process of its host, as far as the launcher says?"""
    return rank() == 0 or os.environ.get("LOCAL_RANK") == "0"


def world_size() -> int:
    """The world size that the launcher gave this process; 1 where there is none."""
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else 1
