"""Quantities with units: '100 Mbit', '1 ms', '10m'."""

from __future__ import annotations

import math
import re
from typing import Any

from ..core.errors import UserError

BITS = {"bit": 1, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "B": 8, "kB": 8e3, "MB": 8e6, "GB": 8e9}
BITS |= {"bps": 1, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def quantity(text: Any, units: dict[str, float], what: str) -> float:
    """'100 Mbit' or '1 ms' as a number in the base unit of `units`."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([a-zA-Z]+)?(?:/s)?\s*", str(text))
    try:
        value = float(match[1]) if match else math.nan
    except ValueError:
        value = math.nan
    unit = (match[2] if match else None) or ""
    if re.fullmatch("[kKmMgG]?b", unit) and "B" in units:
        raise UserError(f"{what} = {text!r}: bits or bytes? write {unit}it for bits, {unit[:-1]}B for bytes")
    known = {name.lower(): factor for name, factor in units.items()}
    if math.isnan(value) or (unit and unit.lower() not in known):
        raise UserError(
            f"{what} = {text!r}: write a number and one of {', '.join(units)}, such as '100 {list(units)[2]}'"
        )
    if not unit and value != 0 and not math.isinf(value):
        raise UserError(f"{what} = {text!r} has no unit: add one of {', '.join(units)}")
    return value * known.get(unit.lower(), 1.0)


def duration(text: Any, what: str = "duration") -> float:
    """'10m', '90 s' or plain seconds."""
    number = isinstance(text, (int, float)) and not isinstance(text, bool)
    if number or re.fullmatch(r"\s*[0-9]+(\.[0-9]*)?\s*", str(text)):
        seconds = float(text)
    else:
        seconds = quantity(text, SECONDS, what)
    if not seconds > 0:
        raise UserError(f"{what} = {text!r}: must be above zero")
    return seconds


def bits(value: float) -> str:
    """1e8 as '100 Mbit'."""
    return _in_units(value, [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)])


def seconds(value: float) -> str:
    """0.001 as '1 ms'."""
    return _in_units(value, [("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)])


def _in_units(value: float, units: list[tuple[str, float]]) -> str:
    name, factor = next((u for u in units if value >= u[1]), units[-1])
    return f"{value / factor:.12g} {name}"
