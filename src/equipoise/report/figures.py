"""Shared settings of matplotlib pictures, which are left out if matplotlib is not installed."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

BLUE, ORANGE = "#2f6fb3", "#d9722e"  # distinguishable with colour blindness


class Scheme(NamedTuple):
    """Colours of lines and text, of what stands behind them, and of points in the background."""

    ink: str
    paper: str
    faint: str


LIGHT, DARK = Scheme("#444444", "#ffffff", "#d0d0d4"), Scheme("#c8c8cc", "#17171a", "#45454c")  # as in page.css


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
