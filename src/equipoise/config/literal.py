"""Values on the command line: as in TOML where they look like it (4, 0.25, true, [1, 2]), else plain text."""

from __future__ import annotations

import re
from typing import Any

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def literal(text: str) -> Any:
    """The value that `text` stands for; `1,2,4` is a list, and so is `64,`."""
    word = text.strip()
    if word in ("true", "false"):
        return word == "true"
    if _INTEGER.fullmatch(word) and len(word) < 1000:  # Python refuses to read more digits than it thinks sane
        return int(word)
    if _FLOAT.fullmatch(word) and not re.match(r"[+-]?0[0-9]", word):
        return float(word)
    if word[:1] in ("[", "{", '"', "'"):
        return _toml(text)
    if "," in word:
        return [literal(part) for part in word.split(",") if part.strip()]
    return text


def _toml(text: str) -> Any:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
