"""docs/faults.md: what was counted, against the goals. Everything in it follows from the rows of one run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .count import Row

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

HEAD = """# Faults
What happens to a run when a machine fails, and how often that was tried.

- **A run that was killed** goes on with `equipoise resume RUN`, to the bits that it would have had. The steps since the
  last checkpoint are taken again (`--checkpoint-every`); `kill -9` in the middle of a write damages no checkpoint.
- **A worker that dies or hangs** is named with its rank and step. A dead one ends the run at once, one that hangs after
  `--timeout` (300 s). With [`--elastic`](elastic.md) the others go on.
- **A host that is cut off.** The others name its worker after `--timeout`. Its own worker ends with a line that says
  that the store does not answer. The store is on the first host: where that one is lost, all workers end, and the run
  is resumed.
- **A full disk or a folder that became read-only** ends the run in one line with the file. Free some space and resume.
- **A damaged checkpoint** is refused with the step of the one before: `equipoise resume RUN --from STEP`.
- **Files of others.** Checkpoints run no code. Recipes, logs, results, clusters and data with odd content are refused in
  one line, before memory is taken for what they claim to hold.

## How it was counted
`make chaos` does these things to small runs, at moments drawn from a seed, and writes this page: 3 workers, every
registered sync in turn, with a journal of the examples that each worker trains on. Hosts are network namespaces and
disks are small file systems in memory, which takes root on Linux. A short version is among the tests.

<!-- not run: takes a quarter of an hour -->
```console
$ make chaos
$ python -m tests.chaos --only kills --seed 7
```
"""


class Goal(NamedTuple):
    words: str
    rows: str  # a pattern of the faults that count for it
    least: int = 1  # so many must have been tried


GOALS = [
    Goal("kills (`kill -9`) survived or resumed", r"kill -9 .*|killed workers of elastic runs", 100),
    Goal("runs in which no example is lost or repeated", r"examples of .*", 24),
    Goal("last good checkpoints that are whole", r"last good checkpoints .*", 100),
    Goal("hung workers named rightly within the deadline", r"stopped workers \(SIGSTOP\)", 20),
    Goal(
        "workers named rightly that die or hang",
        r"killed workers|workers that die or hang.*|workers that lose a host",
        53,
    ),
    Goal("changes of membership with one round of work lost at the most", r"changes of membership|rounds taken back.*"),
    Goal("elastic runs, a kill every 50 rounds: the loss is that of undisturbed runs", r"losses at the end .*"),
    Goal("elastic runs, a kill every 50 rounds: 90 % of the ideal goodput", r"goodput .*"),
]


def page(rows: Sequence[Row], setup: str) -> str:
    lines = [HEAD, "## Goals", _wrapped(setup), "", "| goal | held | |", "|---|---|---|"]
    for goal in GOALS:
        held, tried = _sums(goal, rows)
        verdict = "met" if held == tried >= goal.least else "**missed**" if tried else "not tried"
        lines.append(f"| {goal.words} | {held} of {tried} | {verdict} |")
    lines += ["", "## What was counted", "| what | expected | held | worst |", "|---|---|---|---|"]
    for row in rows:
        held = f"{row.held} of {row.tried}"
        worst = "" if row.worst is None else f"{row.worst:.3g} {row.unit}"
        lines.append(f"| {row.fault} | {row.expected} | {held if row.passed else f'**{held}**'} | {worst} |")
    return "\n".join(lines) + "\n"


def _sums(goal: Goal, rows: Sequence[Row]) -> tuple[int, int]:
    own = [row for row in rows if re.fullmatch(goal.rows, row.fault)]
    return sum(row.held for row in own), sum(row.tried for row in own)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def parsed(text: str) -> tuple[list[Row], str]:
    """The rows and the setup of a page."""
    setup = " ".join(text.split("## Goals\n", 1)[1].split("\n\n", 1)[0].split())
    rows = []
    for line in text.split("## What was counted\n", 1)[1].splitlines()[2:]:
        fault, expected, held, worst = (cell.strip() for cell in line.strip("|").split("|"))
        right, tried = map(int, held.strip("*").split(" of "))
        row = Row(fault, expected, tried, right)
        if worst:
            value, row.unit = worst.split(" ", 1)
            row.worst = float(value)
        rows.append(row)
    return rows, setup
