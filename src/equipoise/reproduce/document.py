"""The outcomes as a page for the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version

from .base import Outcome
from .claims import CLAIMS, PAPERS

_HEAD = """# Do the papers' claims hold?
`equipoise reproduce` checks the main claims of the five papers that this library carries. Each is a small experiment
with virtual workers, a range that follows from what the paper says, and a verdict: pass or fail. A claim that fails here may hold elsewhere;
beside it stand the other methods and, where we know one, the variant that does better. Quantities without a range have no verdict.

```console
$ equipoise reproduce --list
$ equipoise reproduce gossip-rate
```
`--scale small` (the default) takes up to two minutes a claim on one core, on bundled or synthetic data. `--scale full` is the same code
with the papers' sizes; where it says CIFAR-10, give its folder with `--data-dir`. `--json` prints outcomes for programs,
`--write FILE` writes this page. A name may also be a paper: order, gossip, batch, partition, pull. Exit code 0 says that the
experiments ran, not that the claims hold. Runs at the two scales: [small](reproduce.md), [full](reproduce-full.md).
"""


def document(outcomes: Sequence[Outcome], command: str) -> str:
    passed = sum(outcome.passed for outcome in outcomes)
    failed = [f"`{outcome.claim.name}`" for outcome in outcomes if not outcome.passed]
    run = {outcome.claim.name for outcome in outcomes}
    missing = [f"`{claim.name}`" for claim in CLAIMS if claim.name not in run]
    spent = sum(outcome.seconds for outcome in outcomes)
    parts = [
        _HEAD,
        "## The last run",
        f"{datetime.now(timezone.utc):%d %B %Y}, `{command}`, {machine()}: {spent / 60:.0f} minutes. "
        f"**{passed} of {len(outcomes)} hold**"
        + (f"; not: {', '.join(failed)}." if failed else ".")
        + (f" Not in this run: {', '.join(missing)}." if missing else ""),
        "",
        "| claim | paper | verdict | seconds |",
        "|---|---|---|---|",
        *(f"| [{o.claim.name}](#{o.claim.name}) | {o.claim.paper} | {_word(o)} | {o.seconds:.0f} |" for o in outcomes),
    ]
    for paper, citation in PAPERS.items():
        own = [outcome for outcome in outcomes if outcome.claim.paper == paper]
        if own:
            parts += ["", f"## {paper.capitalize()}", f"{citation}."]
        for outcome in own:
            parts += _claim(outcome)
    return "\n".join(parts) + "\n"


def _claim(outcome: Outcome) -> list[str]:
    claim = outcome.claim
    rows = [f"| {name} | {value} | {expected} | {verdict} |" for name, value, expected, verdict in outcome.rows()]
    return [
        "",
        f"### {claim.name}",
        f"{_word(outcome).capitalize()}. *{claim.says}* Measured: {claim.recipe} Sizes: {claim.sizes(outcome.scale)}.",
        "",
        "| quantity | measured | expected | |",
        "|---|---|---|---|",
        *rows,
        *(["", claim.remark] if claim.remark else []),
    ]


def _word(outcome: Outcome) -> str:
    return "pass" if outcome.passed else "**fail**"


def machine() -> str:
    """Its size, and what the numbers depend on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GB"
    return f"{cores} cores{memory}, Python {platform.python_version()}, torch {version('torch')}"
