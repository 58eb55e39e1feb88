"""Shared settings of matplotlib pictures, which are left out if matplotlib is not installed."""

from __future__ import annotations

import importlib.util

INK, BLUE, ORANGE = "#444444", "#2f6fb3", "#d9722e"  # distinguishable with colour blindness


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
