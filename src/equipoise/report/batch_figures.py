"""What a batch rule saw and did, drawn from its events."""

from __future__ import annotations

import io
from typing import Any

from .figures import BLUE, INK, ORANGE, available


def batches(events: list[dict[str, Any]]) -> bytes | None:
    """Batch size of all workers and gradient noise scale against samples, as PNG; None where no rule decided."""
    tests = [e for e in events if e["event"] == "batch"]
    if not tests or not available():
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    seen = [(e["consumed"], e["noise_scale"]) for e in tests if isinstance(e.get("noise_scale"), (int, float))]
    axes.plot([x for x, _ in seen], [y for _, y in seen], ".", color=ORANGE, markersize=4, label="noise scale")
    axes.step([e["consumed"] for e in tests], [sum(e["new"]) for e in tests], where="post", color=BLUE, label="batch")
    axes.set_yscale("log")
    axes.set(xlabel="samples of all workers", ylabel="examples")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.tick_params(colors=INK)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
