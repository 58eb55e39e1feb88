"""Packages that only some features need: imported where they are used, and named with the fix when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from .errors import UserError

_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow"}  # where pip's name is not the name of the module


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`; if that fails, raise a `UserError` of one line that says how to install it.

    `extra` is the optional dependency of Equipoise that contains the package, `purpose` the subject of the message:
    `require("numba", "partition", "the submodular partition")` raises "the submodular partition needs numba: pip
    install 'equipoise[partition]'".
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)  # first, because a submodule may still be loaded when its package is blocked
        return importlib.import_module(module)
    except ImportError as error:
        needs = f"{purpose} needs {_DISTRIBUTIONS.get(package, package)}"
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{needs}: pip install 'equipoise[{extra}]'") from None
        # The package is there but does not work, for instance because it was built for another version of numpy.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{needs}, which is installed but cannot be imported ({reason}): pip install --upgrade 'equipoise[{extra}]'"
        ) from error
