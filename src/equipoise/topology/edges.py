from __future__ import annotations

import hashlib
import pathlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Static
from .graphs import components, reach
from .weights import metropolis

Peers = tuple[list[tuple[int, float]], ...]


@dataclass(frozen=True)
class Links:
    """A checked list of links. Caches compare the digest only."""

    digest: str
    rows: tuple[tuple[int, int, float | None], ...] = field(compare=False)


@dataclass
class Edges(Static):
    """Your own graph: lines `a b [weight]` in a file, or the same as a list; `#` starts a comment.

    Undirected: a and b mix each other in, with Metropolis-Hastings weights unless every line gives a weight.
    Directed: a sends to b the fraction `weight` of its model, 1 / (1 + out-degree) unless given, and keeps the rest.
    Only push-sum methods accept a directed graph in which a worker gives away more than it receives.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="edges", help="your own graph: a file with a line `a b [weight]` per link"
    )

    path: str = option("", help="file with a line `a b [weight]` for each link")
    links: list[Any] = option([], help='the links: (0, 1), (1, 2, 0.25) or "0-1", "1-2-0.25"')
    directed: bool = option(False, help="is each line one way, from a to b?")

    def check(self) -> None:
        if self.path and self.links:
            raise UserError("Edges takes path='FILE' or links=[(0, 1), ...], not both: leave one out")
        lines = _lines(self.path) if self.path else [(f"links: {link!r}", link) for link in self.links]
        rows = tuple(_row(where, line) for where, line in lines)
        weighted = sum(weight is not None for *_, weight in rows)
        if weighted not in (0, len(rows)):
            raise UserError(f"Edges: {weighted} of {len(rows)} links have a weight: give one to all or to none")
        seen: set[tuple[int, int]] = set()
        for (where, _), (a, b, _) in zip(lines, rows, strict=True):
            pair = (a, b) if self.directed else (min(a, b), max(a, b))
            if pair in seen:
                raise UserError(f"{where}: the link {a} {b} is listed twice: keep one of the two")
            seen.add(pair)
        # Read once, at construction: the weights must not change with the file. Copies and pickles contain the links.
        self._links = Links(hashlib.sha256(repr(rows).encode()).hexdigest(), rows)

    @property
    def content(self) -> str:
        return self._links.digest

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        if not self._links.rows:
            raise UserError("topology edges needs a graph: give a file with --topology.path, or --topology.links")
        return (_directed if self.directed else _undirected)(self._links, size)[rank]


@lru_cache(maxsize=16)
def _undirected(links: Links, size: int) -> Peers:
    graph: list[dict[int, float | None]] = [{} for _ in range(size)]
    for a, b, weight in _links_that_fit(links, size):
        graph[a][b] = graph[b][a] = weight
    separate = components(graph)
    if len(separate) > 1:
        raise UserError(
            f"Edges over {size} workers: not connected, {_listed(separate[0])} and {_listed(separate[1])} "
            f"have no path between them: add a link, such as {separate[0][0]} {separate[1][0]}"
        )
    if any(weight is None for peers in graph for weight in peers.values()):
        return tuple(metropolis(rank, graph.__getitem__) for rank in range(size))
    return _checked(graph, size)


@lru_cache(maxsize=16)
def _directed(links: Links, size: int) -> Peers:
    graph: list[dict[int, float | None]] = [{} for _ in range(size)]  # by sender
    for a, b, weight in _links_that_fit(links, size):
        graph[a][b] = weight
    sent = _checked(
        [{b: 1.0 / (1 + len(peers)) if w is None else w for b, w in peers.items()} for peers in graph], size
    )
    received: Peers = tuple([] for _ in range(size))
    for a, peers in enumerate(sent):
        for b, weight in peers:
            received[b].append((a, weight))
    for verb, arrows in (("reaches", sent), ("hears from", received)):
        missing = set(range(size)) - reach([[peer for peer, _ in peers] for peers in arrows], 0)
        if missing:
            raise UserError(
                f"Edges over {size} workers: not strongly connected, worker 0 never {verb} "
                f"{_listed(sorted(missing))}: add links, or leave out `directed`"
            )
    return received


def _checked(graph: Any, size: int) -> Peers:
    """The weights as given; refused where a worker gives away more than 1."""
    for rank in range(size):
        total = sum(graph[rank].values())
        if total > 1.0 + 1e-9:
            raise UserError(f"Edges: the weights at worker {rank} sum to {total:.6g}: they may sum to 1 at most")
    return tuple(list(peers.items()) for peers in graph)


def _links_that_fit(links: Links, size: int) -> tuple[tuple[int, int, float | None], ...]:
    """The links; refused where one names a worker outside the world size."""
    for a, b, _ in links.rows:
        if max(a, b) >= size:
            raise UserError(
                f"Edges: the link {a} {b} names worker {max(a, b)} but there are {size}, numbered from 0: "
                f"use --workers {1 + max(max(row[:2]) for row in links.rows)}"
            )
    return links.rows


def _lines(path: str) -> list[tuple[str, str]]:
    try:
        text = pathlib.Path(path).read_text()
    except FileNotFoundError:
        raise UserError(
            f"edge file {path} does not exist: pass the path of a file with a line `a b` per link"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"edge file {path} cannot be read ({error}): it must be a plain text file") from None
    stripped = [(f"{path} line {i}", line.split("#")[0].strip()) for i, line in enumerate(text.splitlines(), 1)]
    lines = [(where, line) for where, line in stripped if line]
    if not lines:
        raise UserError(f"edge file {path} has no links: write a line `a b` for each")
    return lines


def _row(where: str, line: Any) -> tuple[int, int, float | None]:
    """`0 1 0.5`, `0-1-0.5` or (0, 1, 0.5), the weight optional."""
    cells = line.replace("-", " ", 2).split() if isinstance(line, str) else line
    try:
        a, b, *rest = cells
        if int(a) != float(a) or int(b) != float(b) or len(rest) > 1:
            raise ValueError
        row = int(a), int(b), float(rest[0]) if rest else None
    except (TypeError, ValueError):
        raise UserError(
            f"{where}: takes two worker numbers and perhaps a weight, such as `0 1` or `0 1 0.25`"
        ) from None
    if row[0] == row[1] or min(row[:2]) < 0:
        raise UserError(f"{where}: a link joins two different workers, numbered from 0; what a worker keeps is implied")
    if row[2] is not None and not 0.0 < row[2] <= 1.0:
        raise UserError(f"{where}: the weight must be above 0 and at most 1")
    return row


def _listed(ranks: list[int]) -> str:
    shown = " ".join(map(str, ranks[:6])) + (" ..." if len(ranks) > 6 else "")
    return f"worker{'s' if len(ranks) > 1 else ''} {shown}"
