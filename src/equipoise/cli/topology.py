"""`equipoise topology`: properties and a picture of a graph. Does not import torch."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from ..config import registry
from ..config.literal import literal
from ..core.errors import UserError, did_you_mean
from ..core.terminal import say
from .columns import columns
from .numbers import integer
from .parser import Parser

if TYPE_CHECKING:
    from ..topology import Topology


_EXAMPLES = """examples:
  equipoise topology ring --workers 16
  equipoise topology torus --workers 16 --out torus.svg
  equipoise topology base-k --peers 2 --workers 6
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise topology NAME [flags]", _EXAMPLES
    parser.dotted = ("topology",)  # as in `equipoise train`
    names = registry.names("topology")
    parser.add_argument("name", metavar="NAME", help=", ".join(names))
    parser.add_argument("--workers", metavar="N", default="4", help="number of workers (default: 4)")
    parser.add_argument("--out", metavar="FILE", help="draw the graph: FILE.svg, or FILE.png (needs matplotlib)")
    group = parser.add_argument_group("options of a topology", "Also accepted as --topology.OPTION, as in train.")
    for option, (owners, text) in _options(names).items():
        prefix = "" if len(owners) == len(names) else f"{', '.join(owners)}: "
        group.add_argument(f"--{option}", metavar="VALUE", default=argparse.SUPPRESS, help=f"{prefix}{text}")


def run(arguments: argparse.Namespace) -> int:
    given = {name: literal(text) for name, text in vars(arguments).items() if name in _options()}
    topology = build(arguments.name, given | arguments.dotted.get("topology", {}))
    workers = integer("workers", arguments.workers)
    lines = facts(topology.on(workers))
    if arguments.out:
        from ..topology.drawing import draw

        draw(topology.on(workers), arguments.out)
        lines.append(("picture", arguments.out))
    say(columns(lines))
    return 0


def build(name: str, options: dict[str, Any]) -> Topology:
    """The topology of that name with these options; unknown options are refused."""
    cls = registry.get("topology", name)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for option, value in options.items():
        if option not in fields:
            raise UserError(f"topology {name} has no option {option!r}: {did_you_mean(option, list(fields))}")
        if str(fields[option].type).startswith("list") and not isinstance(value, list):
            options = options | {option: [value]}
        if fields[option].type == "str":
            options = options | {option: str(value)}
    topology: Topology = cls(**options)
    return topology


def facts(topology: Topology) -> list[tuple[str, str]]:
    """Names and values of the properties."""
    rounds = range(topology.cycle or 1)
    try:
        topology.validate()
        balanced = True
    except UserError:
        topology.validate(push_sum=True)
        balanced = False
    kind = "symmetric, " if topology.symmetric else "directed, "
    rows = [
        ("topology", repr(topology)),
        ("workers", str(topology.size)),
        ("period", _period(topology)),
        ("edges", _edges(topology)),
        ("degree", f"{max(topology.degree(round) for round in rounds)} at most"),
        (
            "weights",
            kind + ("doubly stochastic" if balanced else "columns sum to 1, rows do not: for push-sum methods only"),
        ),
        ("diameter", f"{_rounds(topology.diameter())} until every worker has received from every other"),
    ]
    if not balanced:
        return [*rows, ("fingerprint", topology.fingerprint())]
    if topology.cycle == 1:
        rows += [("lambda", _number(topology.rate())), ("spectral gap", _number(topology.spectral_gap()))]
    else:
        length = topology.cycle or 16
        contraction = topology.contraction(length)
        exact = contraction < 1e-9
        per_round = f"{_number(1.0 - contraction ** (1.0 / length))} per round on average"
        average = "1 over a period" if exact else per_round
        rows += [
            (f"lambda of {length} rounds", "0: the exact mean" if exact else _number(contraction)),
            ("spectral gap", average),
        ]
    if topology.symmetric:
        rows.append(("lambda_min", _number(min(topology.lambda_min(round) for round in rounds))))
    tenfold = _rounds(topology.rounds_to_contract())
    rows.append(("tenfold", f"{tenfold} of plain gossip reduce the consensus distance tenfold"))
    return [*rows, ("D2", _d2(topology)), ("fingerprint", topology.fingerprint())]


def _d2(topology: Topology) -> str:
    if not topology.symmetric:
        return "not allowed: it needs symmetric weights; use an undirected topology"
    lowest = min(topology.lambda_min(round) for round in range(topology.cycle or 1))
    if lowest <= -1.0 / 3.0 + 1e-9:
        return "not allowed: it needs lambda_min > -1/3; add --lazy true"
    return "allowed: lambda_min > -1/3" + ("" if topology.cycle == 1 else ", but its theory assumes a fixed graph")


def _period(topology: Topology) -> str:
    if topology.cycle == 1:
        return "1: the same graph in every round"
    return f"{topology.cycle} rounds, then repeats" if topology.cycle else "none: every round is drawn at random"


def _edges(topology: Topology) -> str:
    rounds = range(min(topology.cycle or 1, 12))
    messages = [sum(len(topology.targets(r, rank)) for rank in range(topology.size)) for r in rounds]
    edges = [count // 2 if topology.symmetric else count for count in messages]
    shown = " ".join(map(str, edges)) if len(set(edges)) > 1 else str(edges[0])
    more = " ..." if topology.cycle > len(rounds) and len(set(edges)) > 1 else ""
    per = "per round" if len(set(edges)) == 1 else "in rounds 0, 1, ..."
    return f"{shown}{more} {per}, at most {max(messages)} messages"


def _rounds(count: int | None) -> str:
    if count is None:
        return "no finite number of rounds"
    return "1 round" if count == 1 else f"{count} rounds"


def _number(value: float) -> str:
    return f"{value:.6f}" if abs(value) > 5e-7 else "0"


def _options(names: list[str] | None = None) -> dict[str, tuple[list[str], str]]:
    """Every option of any topology: the topologies that have it, and its help."""
    options: dict[str, tuple[list[str], str]] = {}
    for name in names or registry.names("topology"):
        for field in dataclasses.fields(registry.get("topology", name)):
            owners, _ = options.setdefault(field.name, ([], str(field.metadata["help"]).replace("%", "%%")))
            owners.append(name)
    return options
