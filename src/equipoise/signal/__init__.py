"""The per-example gradients that orders learn from."""

from typing import Any

from .base import GradientView as GradientView
from .base import Signal as Signal
from .exact import Exact as Exact
from .factor_view import FactorView
from .forward import Forward as Forward
from .group_gradient import GroupGradient as GroupGradient
from .last_layer import LastLayer as LastLayer
from .layer_sketch import LayerSketch, SketchedRows
from .projection import Projection as Projection
from .rows import Rows as Rows

SIGNALS: dict[str, type[Signal]] = {
    "exact": Exact,
    "forward": Forward,
    "projection": Projection,
    "count-sketch": Projection,
    "last-layer": LastLayer,
    "batch": GroupGradient,
}


def signal_of(name: str, group: int, short: bool = False) -> Signal:
    """The signal that an order's options name; `short`: its vectors will be kept."""
    if name == "count-sketch":
        return Projection(kind="count")
    if name == "last-layer":
        return LastLayer(sketched=short)
    return GroupGradient(group) if name == "batch" else SIGNALS[name]()


def view_from_state(state: dict[str, Any]) -> GradientView:
    """The view that `GradientView.state` described."""
    if "d" in state:
        return SketchedRows(LayerSketch(state["seed"], state["width"]), state["a"], state["d"])
    return Rows(state["rows"], state["sizes"]) if "rows" in state else FactorView.from_state(state)


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if isinstance(value, type))
