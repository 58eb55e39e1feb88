"""Compare combinations of methods: recipes or choices, run with several seeds, ranked and explained.

The package and its function have one name: `eq.compare(...)` calls `compare` of choices.py.
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
