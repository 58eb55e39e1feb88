"""Compare combinations of methods: a grid of recipes, run in parallel, resumable, ranked and explained.

`eq.compare(...)` calls `compare` of choices.py: the package and the function have one name.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .choices import Comparison


class _Callable(types.ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Comparison:
        from .choices import compare

        return compare(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
