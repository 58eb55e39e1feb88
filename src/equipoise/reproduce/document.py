"""The outcomes as a Markdown page of the documentation."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version

from .base import Claim, Outcome
from .claims import CLAIMS, PAPERS

_HEAD = """# Do the papers' claims hold?
`equipoise reproduce` checks the main claims of five papers. Each claim is a small experiment on virtual workers with
a range that follows from the paper, and a verdict: pass or fail. A claim that fails here may hold elsewhere. The
subject is the method as the paper has it, which is not always the default here. Variants have the same ranges but do
not count for the verdict; a claim that fails names those for which it holds, or says that none is known. Quantities
without a range have no verdict.

```console
$ equipoise reproduce --list
$ equipoise reproduce gossip-rate
```
`--scale small` (the default) takes up to two and a half minutes of one core per claim, on bundled or synthetic data.
`--scale full` takes about three hours of one core in all (`order-network` one of them): the same code at larger sizes,
on CIFAR-10 (its folder in `--data-dir`) with LeNet or a small ResNet where the claim is about training networks. Most
papers train larger networks for longer: the sizes were chosen for this time, and every claim states its own. `--json`
prints the outcomes for programs. `--write FILE` writes this page; with `--earlier FILE ...` also from outcomes that
`--json` printed before, so that long runs can be done one by one. Instead of a claim you can name a paper: order,
gossip, batch, partition, pull. Exit code 0 means that the experiments ran, not that the claims hold. Results: [small
scale](reproduce.md), [full scale](reproduce-full.md).
"""


def document(outcomes: Sequence[Outcome], command: str) -> str:
    passed = sum(outcome.passed for outcome in outcomes)
    failed = [f"`{outcome.claim.name}`" for outcome in outcomes if not outcome.passed]
    run = {outcome.claim.name for outcome in outcomes}
    full = any(outcome.scale == "full" for outcome in outcomes)
    missing = [_missing(claim, full) for claim in CLAIMS if claim.name not in run]
    spent = sum(outcome.seconds for outcome in outcomes)
    parts = [
        _HEAD,
        "## Latest run",
        _wrapped(
            f"{_days(outcomes)}, `{command}`, {machine()}: {spent / 60:.0f} minutes of one core. "
            f"**{passed} of {len(outcomes)} hold**"
            + (f"; not: {', '.join(failed)}." if failed else ".")
            + (f" Not in this run: {', '.join(missing)}." if missing else "")
        ),
        "",
        "| claim | paper | verdict | seconds of a core |",
        "|---|---|---|---|",
        *(f"| [{o.claim.name}](#{o.claim.name}) | {o.claim.paper} | {_word(o)} | {o.seconds:.0f} |" for o in outcomes),
    ]
    for paper, citation in PAPERS.items():
        own = [outcome for outcome in outcomes if outcome.claim.paper == paper]
        if own:
            parts += ["", f"## {paper.capitalize()}", _wrapped(f"{citation}.")]
        for outcome in own:
            parts += _section(outcome)
    return "\n".join(parts) + "\n"


def _days(outcomes: Sequence[Outcome]) -> str:
    """The first and the last day of the measurements: long ones are not made in one run."""
    ends = sorted({outcome.date for outcome in outcomes})
    return " to ".join(f"{date.fromisoformat(day):%d %B %Y}" for day in dict.fromkeys((ends[0], ends[-1])))


def _missing(claim: Claim, full: bool) -> str:
    if not (full and claim.hours):
        return f"`{claim.name}`"
    long = f"{claim.hours:g} hours" if claim.hours >= 1 else f"{60 * claim.hours:.0f} minutes"
    return f"`{claim.name}` (about {long} of one core)"


def _section(outcome: Outcome) -> list[str]:
    claim = outcome.claim
    comments = " ".join(text for text in (outcome.instead, claim.remark) if text)
    rows = [f"| {name} | {value} | {expected} | {verdict} |" for name, value, expected, verdict in outcome.rows()]
    return [
        "",
        f"### {claim.name}",
        _wrapped(
            f"{_word(outcome).capitalize()}. *{claim.says}* Measured: {claim.recipe} "
            f"Sizes: {claim.sizes(outcome.scale)}."
        ),
        "",
        "| quantity | measured | expected | |",
        "|---|---|---|---|",
        *rows,
        *(["", _wrapped(comments)] if comments else []),
    ]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width=118, break_long_words=False, break_on_hyphens=False)


def _word(outcome: Outcome) -> str:
    return "pass" if outcome.passed else "**fail**"


def machine() -> str:
    """The machine and the versions that the numbers depend on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GB"
    return f"{cores} cores{memory}, Python {platform.python_version()}, torch {version('torch')}"
