"""Quantities with units: '100 Mbit', '1 ms', '10m'."""

from __future__ import annotations

import math
import re
from typing import Any

from ..core.errors import UserError

BITS = {"bit": 1, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "B": 8, "kB": 8e3, "MB": 8e6, "GB": 8e9}
BITS |= {"bps": 1, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def quantity(value: Any, units: dict[str, float], what: str) -> float:
    """'100 Mbit' or '1 ms' as a number in the base unit of `units`."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([a-zA-Z]+)?(?:/s)?\s*", str(value))
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    unit = (match[2] if match else None) or ""
    if re.fullmatch("[kKmMgG]?b", unit) and "B" in units:
        raise UserError(f"{what} = {value!r}: bits or bytes? write {unit}it for bits, {unit[:-1]}B for bytes")
    known = {name.lower(): factor for name, factor in units.items()}
    if math.isnan(number) or (unit and unit.lower() not in known):
        raise UserError(
            f"{what} = {value!r}: write a number and one of {', '.join(units)}, such as '100 {list(units)[2]}'"
        )
    if not unit and number != 0 and not math.isinf(number):
        raise UserError(f"{what} = {value!r} has no unit: add one of {', '.join(units)}")
    return number * known.get(unit.lower(), 1.0)


def duration(value: Any, what: str = "duration") -> float:
    """'10m', '90 s' or plain seconds."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number or re.fullmatch(r"\s*[0-9]+(\.[0-9]*)?\s*", str(value)):
        seconds = float(value)
    else:
        seconds = quantity(value, SECONDS, what)
    if not seconds > 0:
        raise UserError(f"{what} = {value!r}: must be above zero")
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
