"""Numbers on the command line."""

from __future__ import annotations

from ..config.literal import literal
from ..core.errors import UserError


def integer(flag: str, text: str, least: int = 1) -> int:
    """The value of `--flag`, a whole number of at least `least`."""
    value = literal(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"--{flag} {text}: takes a whole number of at least {least}")
    return value


def number_list(flag: str, text: str) -> list[float]:
    """The value of `--flag`, one number per worker, such as `1,2,4,8`."""
    value = literal(text)
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        raise UserError(f"--{flag} {text}: takes one number per worker, such as 1,2,4,8")
    return [float(v) for v in values]
