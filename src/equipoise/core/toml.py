"""TOML files, with errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import UserError


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as a dict; whatever is wrong with it in one line, with the line number."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        return table
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text: it should be a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits, or a path with a null byte
        raise UserError(f"{str(path)!r}: cannot be read ({' '.join(str(error).split())[:80]})") from None
