"""A griffe extension: docstrings reach the API reference with their equations set as LaTeX, as on the method cards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
import equations  # noqa: E402


class Equations(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = equations.markdown(obj.docstring.value)
