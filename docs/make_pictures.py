"""Draws the plots of the method cards: distance to the optimum against rounds, on the quadratic problem of the tests.

python docs/make_pictures.py            # about two minutes; writes docs/pictures/sync-*.png
python docs/make_pictures.py detag      # one of them
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from equipoise import sync  # noqa: E402
from equipoise.config import registry  # noqa: E402
from tests.sync.quadratic import Problem, solve  # noqa: E402

WORKERS, STEPS = 8, 240
RARE = (
    "periodic-average",
    "k-gt",
    "slowmo",
    "diloco",
    "easgd",
    "eamsgd",
    "lsgd",
    "mgrawa",
    "lgrawa",
)  # made for several local steps between rounds


def curve(problem: Problem, method: sync.Sync, period: int, lr: float) -> tuple[list[int], list[float]]:
    """Rounds of worker 0 and the largest distance of any worker from the optimum, after each step."""
    rounds = np.zeros(STEPS, dtype=int)
    away = np.zeros((WORKERS, STEPS))

    def look(step: int, together: object, x: np.ndarray) -> None:
        rank = together.comm.rank  # type: ignore[attr-defined]
        away[rank, step] = np.abs(x - problem.optimum).max()
        rounds[step] = together.clock.rounds  # type: ignore[attr-defined]

    solve(problem, method, steps=STEPS, lr=lr, period=period, on_step=look)
    ends = np.flatnonzero(np.diff(rounds, prepend=0)) if rounds[-1] else np.arange(STEPS)  # steps that end with a round
    return rounds[ends].tolist(), away.max(0)[ends].tolist()


def main() -> None:
    problem = Problem.make(WORKERS)
    baseline = curve(problem, sync.AllReduce(), 1, 0.3 / problem.smoothness)
    for entry in registry.entries("sync"):
        if sys.argv[1:] and entry.name not in sys.argv[1:]:
            continue
        cls = registry.get("sync", entry.name)
        figure, axis = plt.subplots(figsize=(4, 2.6))
        for part, style in ((0.3, "-"), (0.1, "--")):
            period = 4 if entry.name in RARE else 1
            rounds, away = curve(problem, cls(), period, part / problem.smoothness)
            across = rounds if rounds[-1] else list(range(1, STEPS + 1))
            axis.semilogy(across, np.maximum(away, 1e-16), style, label=f"step {part:g} / L")
        axis.semilogy(*[np.maximum(c, 1e-16) for c in baseline], color="0.7", lw=1, label="all-reduce, 0.3 / L")
        axis.set_xlabel("rounds" if rounds[-1] else "steps")
        axis.set_ylabel("distance from the optimum")
        axis.set_title(f"{entry.name}: {WORKERS} workers, unequal data", fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(ROOT / "docs" / "pictures" / f"sync-{entry.name}.png", dpi=80)
        plt.close(figure)
        print(entry.name, f"{away[-1]:.1e}")


if __name__ == "__main__":
    main()
