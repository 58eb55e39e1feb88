"""`equipoise reproduce NAME...`"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Any

from ..core.errors import UserError, did_you_mean
from ..core.progress_bar import shown
from ..reproduce.base import SCALES, Claim, Outcome, check
from ..reproduce.claims import CLAIMS, PAPERS
from .parser import Parser

_EXAMPLES = """examples:
  equipoise reproduce --list
  equipoise reproduce gossip-rate
  equipoise reproduce order gossip
  equipoise reproduce --all --write docs/reproduce.md
  equipoise reproduce order-herding --json > herding.json
  equipoise reproduce gossip --earlier herding.json --write page.md
"""


def configure(parser: Parser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("names", nargs="*", metavar="NAME", help="a claim, or a paper: " + ", ".join(PAPERS))
    parser.add_argument("--list", action="store_true", help="list the claims")
    parser.add_argument("--all", action="store_true", help="check every claim")
    parser.add_argument("--scale", default="small", metavar="S", help="small (default), or full: larger, hours in all")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with CIFAR-10, which some claims need at full scale")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--earlier", nargs="+", default=[], metavar="FILE", help="add the outcomes that --json printed before"
    )
    parser.add_argument("--write", metavar="FILE", help="also write the results as a Markdown page")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        print(json.dumps([_description(claim) for claim in CLAIMS], indent=1) if arguments.json else listing())
        return 0
    earlier = [outcome for file in arguments.earlier for outcome in _earlier(Path(file), arguments.scale)]
    asked = arguments.names or arguments.all or not earlier
    claims = chosen(arguments.names, arguments.all) if asked else []
    if arguments.all:
        claims = [claim for claim in claims if claim not in [outcome.claim for outcome in earlier]]
    if arguments.scale not in SCALES:
        raise UserError(f"--scale {arguments.scale}: takes {' or '.join(SCALES)}")
    for claim in claims:  # missing data is reported before hours of computation
        claim.arguments(arguments.scale, arguments.data_dir)
    outcomes = []
    for claim in claims:
        if not arguments.json:
            print(introduction(claim, arguments.scale), flush=True)
        else:
            print(f"{claim.name} ...", file=sys.stderr, flush=True)
        with shown():
            outcomes.append(check(claim, arguments.scale, arguments.data_dir))
        if not arguments.json:
            print(conclusion(outcomes[-1]), flush=True)
    again = {outcome.claim.name for outcome in outcomes}
    outcomes += [outcome for outcome in earlier if outcome.claim.name not in again]
    outcomes.sort(key=lambda outcome: CLAIMS.index(outcome.claim))
    if arguments.json:
        print(json.dumps([_description(o.claim) | _result(o) for o in outcomes], indent=1))
    elif len(outcomes) > 1:
        print(f"{sum(o.passed for o in outcomes)} of {len(outcomes)} claims hold at scale {arguments.scale}")
    if arguments.write is not None:
        _write(Path(arguments.write), outcomes, arguments)
    return 0


def chosen(names: list[str], everything: bool) -> list[Claim]:
    """The selected claims, each once, in the order of the catalogue."""
    if everything or not names:
        if names or not everything:
            raise UserError("name a claim, or use --all; equipoise reproduce --list shows the names")
        return list(CLAIMS)
    known = [claim.name for claim in CLAIMS]
    for name in names:
        if name not in known and name not in PAPERS:
            raise UserError(f"unknown claim {name!r}: {did_you_mean(name, [*known, *PAPERS])}")
    return [claim for claim in CLAIMS if claim.name in names or claim.paper in names]


def listing() -> str:
    lines: list[str] = []
    for paper, citation in PAPERS.items():
        lines += [*([""] if lines else []), f"{paper}: {citation}"]
        lines += [f"  {claim.name:<20}{claim.says}" for claim in CLAIMS if claim.paper == paper]
    return "\n".join(lines)


def introduction(claim: Claim, scale: str) -> str:
    rows = [("paper", PAPERS[claim.paper]), ("claim", claim.says), ("setup", claim.recipe)]
    rows.append(("sizes", claim.sizes(scale)))
    return "\n".join([claim.name, *(f"  {name:<10}{text}" for name, text in rows)])


def conclusion(outcome: Outcome) -> str:
    rows = [("quantity", "measured", "expected", ""), *outcome.rows()]
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(3)]
    lines = ["  " + "".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)) + row[3] for row in rows]
    verdict = [f"  {outcome.verdict.upper()} in {outcome.seconds:.0f} s of a core"]
    verdict += [f"  {text}" for text in (outcome.instead, outcome.claim.remark) if text]
    return "\n".join([*(line.rstrip() for line in lines), *verdict, ""])


def _description(claim: Claim) -> dict[str, Any]:
    return {"name": claim.name, "paper": PAPERS[claim.paper], "says": claim.says, "recipe": claim.recipe}


def _result(outcome: Outcome) -> dict[str, Any]:
    expected = [
        {
            "quantity": expect.quantity,
            "low": expect.low if math.isfinite(expect.low) else None,
            "high": expect.high if math.isfinite(expect.high) else None,
            "holds": expect.holds(outcome.measured),
        }
        for expect in outcome.claim.expects
    ]
    measured = {name: value if math.isfinite(value) else str(value) for name, value in outcome.measured.items()}
    return {"verdict": outcome.verdict, "seconds": outcome.seconds, "measured": measured, "expected": expected} | {
        "scale": outcome.scale,
        "date": outcome.date,
        "sizes": outcome.claim.sizes(outcome.scale),
    }


def _earlier(path: Path, scale: str) -> list[Outcome]:
    """What `--json` printed; refused if the catalogue has other sizes or quantities by now."""
    known, outcomes = {claim.name: claim for claim in CLAIMS}, []
    try:
        for row in json.loads(path.read_text(encoding="utf-8")):
            measured = {name: float(value) for name, value in row["measured"].items()}
            day = {"date": f"{date.fromisoformat(row['date'])}"} if "date" in row else {}
            outcome = Outcome(known[row["name"]], measured, float(row["seconds"]), row["scale"], **day)
            outcomes.append((outcome, row["sizes"]))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a file that --json printed") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path}: not what `equipoise reproduce --json` prints: run it again") from None
    for outcome, sizes in outcomes:
        claim = outcome.claim
        lacks = [e.quantity for e in (*claim.expects, *claim.variants) if e.quantity not in outcome.measured]
        if (outcome.scale, sizes) != (scale, claim.sizes(scale)) or lacks:
            raise UserError(f"{path}: {claim.name} was measured at other sizes, or lacks a quantity: run it again")
    return [outcome for outcome, _ in outcomes]


def _write(path: Path, outcomes: list[Outcome], arguments: argparse.Namespace) -> None:
    from ..reproduce.document import document

    everything = len(outcomes) == len(CLAIMS)
    names = [outcome.claim.name for outcome in outcomes] if arguments.earlier else arguments.names
    words = ["equipoise", "reproduce", *(["--all"] if everything else names)]
    if arguments.scale != "small":
        words += ["--scale", arguments.scale]
    if arguments.scale == "full" and any("data" in outcome.claim.full for outcome in outcomes):
        words += ["--data-dir", "DIR"]
    try:
        path.write_text(document(outcomes, shlex.join(words)), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from None
    print(f"written: {path}", file=sys.stderr)
