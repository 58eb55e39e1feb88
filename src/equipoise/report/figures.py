"""What pictures by matplotlib share. Without it there are none."""

from __future__ import annotations

import importlib.util

INK, BLUE, ORANGE = "#444444", "#2f6fb3", "#d9722e"  # readable on white for colour-blind eyes too


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
