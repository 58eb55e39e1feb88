"""Pictures of a run, drawn from its events. Without matplotlib there are none."""

from __future__ import annotations

import importlib.util
import io
import math
from typing import Any

INK, BLUE, ORANGE = "#444444", "#2f6fb3", "#d9722e"  # readable on white for colour-blind eyes too


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def curves(events: list[dict[str, Any]]) -> bytes | None:
    """Loss against steps, and the mean model per epoch, as PNG; None where nothing can be drawn."""
    losses, quality, metric = training(events), *evaluations(events)
    if not available() or not (losses or quality):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    balanced = herding(events)
    figure = Figure(figsize=(13, 3.6) if balanced else (9, 3.6), layout="constrained")
    left, right, *more = figure.subplots(1, 3 if balanced else 2)
    steps = [step for step, _ in losses]
    left.plot(steps, [sum(row) / len(row) for _, row in losses], color=BLUE, label="mean of workers")
    if any(len(row) > 1 for _, row in losses):
        low, high = [min(row) for _, row in losses], [max(row) for _, row in losses]
        left.fill_between(steps, low, high, color=BLUE, alpha=0.2, linewidth=0, label="least to most")
        left.legend(frameon=False)
    left.set(xlabel="steps", ylabel="training loss")
    right.plot([e for e, _ in quality], [v for _, v in quality], color=ORANGE, marker="o", markersize=3)
    right.set(xlabel="epochs", ylabel=f"{metric} of the mean model (test data)")
    for axes in more:
        axes.plot([e for e, _ in balanced], [v for _, v in balanced], color=BLUE, marker="o", markersize=3)
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="epochs", ylabel="largest prefix / a random order's", ylim=(0, None))
    for axes in (left, right, *more):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.tick_params(colors=INK)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def herding(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """(epochs done, largest prefix norm as a part of a random order's) where the order is a balanced one."""
    rows = {e["step"]: (e["epoch"] + 1, e["health"].get("herding")) for e in events if e["event"] == "evaluate"}
    return [(epoch, value) for epoch, value in rows.values() if isinstance(value, (int, float))]


def training(events: list[dict[str, Any]]) -> list[tuple[int, list[float]]]:
    """Logged steps in order, each with the losses of the workers that had one."""
    found: dict[int, list[float]] = {}
    for event in events:
        loss = event.get("loss")
        if event["event"] == "step" and isinstance(loss, (int, float)) and math.isfinite(loss):
            found.setdefault(event["step"], []).append(float(loss))
    return sorted(found.items())


def evaluations(events: list[dict[str, Any]]) -> tuple[list[tuple[float, float]], str]:
    """(epochs done, value) of the mean model, and the name of the metric: accuracy where there is one."""
    seen = [e for e in events if e["event"] == "evaluate" and "mean" in e["models"]]
    metric = "accuracy" if seen and all("accuracy" in e["models"]["mean"] for e in seen) else "loss"
    rows = {e["step"]: (e["epoch"] + 1, e["models"]["mean"][metric]) for e in seen}
    return [(epoch, value) for epoch, value in rows.values() if isinstance(value, (int, float))], metric
