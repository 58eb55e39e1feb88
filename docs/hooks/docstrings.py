"""A griffe extension for the API reference.

Docstrings get their equations set as LaTeX, as on the method cards. A signature shows the default of a field that is
made by `option(default, help=...)`; the cards show its help.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
import equations


class Equations(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = equations.markdown(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        text = str(attr.value)
        if text.startswith("option("):
            call = ast.parse(text, mode="eval").body
            assert isinstance(call, ast.Call)
            attr.value = ast.unparse(call.args[0]) if call.args else None
