"""Small folders of runs, written by hand."""

import json
from pathlib import Path
from typing import Any

RECIPE = """
workers = 2
lr = 0.1
out = "{name}"
{more}
[sync]
name = "{sync}"
[topology]
name = "ring"
[versions]
equipoise = "{version}"
"""


def event(kind: str, worker: int, step: int, **fields: Any) -> dict[str, Any]:
    """Worker 1 consumes three times as much as worker 0."""
    own = {"samples": step * (1 + 2 * worker), "bytes": 10 * step, "rounds": step, "seconds": step / 10}
    return {
        "event": kind,
        "worker": worker,
        "step": step,
        "epoch": 0,
        "simulated_seconds": float(step),
        **own,
        **fields,
    }


def events(steps: int = 40, every: int = 10, timed: bool = True, better: float = 0.0) -> list[dict[str, Any]]:
    """`better` is added to the accuracy."""
    result = [event("start", w, 0, examples=6, classes=[4, 2] if w else [1, 5]) for w in (0, 1)]
    for step in range(every, steps + 1, every):
        for w in (0, 1):
            spent = {"compute": step * (1 + w) / 4, "wait": step * (1 - w) / 4, "communicate": step / 2}
            result.append(event("step", w, step, loss=1.0 / step + w, lr=0.1, batch=4, **(spent if timed else {})))
        models = {"mean": {"loss": 1 / step, "accuracy": 1 - 1 / step + better}}
        result.append(event("evaluate", 0, step, models=models, health={"consensus": 0.5, "herding": 0.7}))
    result.append(event("batch", 0, 5, consumed=20, new=[4, 4], noise_scale=333.0))
    return result


def write(
    folder: Path,
    lines: list[dict[str, Any]] | None = None,
    *,
    sync: str = "detag",
    version: str | None = None,
    more: str = "",
) -> Path:
    import equipoise

    folder.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in (events() if lines is None else lines))
    (folder / "events.jsonl").write_text(text)
    recipe = RECIPE.format(name=folder.name, sync=sync, version=version or equipoise.__version__, more=more)
    (folder / "recipe.toml").write_text(recipe)
    rows = [{"worker": w, "steps": 40, "samples": 40 + 80 * w, "simulated_seconds": None} for w in (0, 1)]
    counts = {"steps": 40, "samples": 160, "epochs": 1.0, "rounds": 40, "messages": 80, "bytes": 800, "seconds": 4.0}
    result = {**counts, "models": {"mean": {"loss": 0.025}}, "workers": rows}
    (folder / "result.json").write_text(json.dumps(result))
    return folder
