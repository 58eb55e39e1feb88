"""A described cluster: how fast each worker is, how fast and how far each link, and what time that takes.

The time model. A worker needs examples / rate for a step, times a random factor if it has jitter; a failure takes it away for the
time of a repair. A message of b bytes takes latency + b / (0.93 bandwidth) of its link. A worker has one connection to the network, full
duplex, as fast as its fastest link: messages that it sends at the same time share it, and so do those that it receives. All
workers of two sites share the line between them. A collective starts when its last member arrives and then takes as long as its ring
0 - 1 - ... - N-1 - 0: 2 (N - 1) messages of b / N bytes for a mean, N - 1 messages of b bytes for a gather, over the slowest link.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .units import BITS, SECONDS, quantity
from .units import duration as duration

DEFAULT_RATE = 1000.0  # examples per second of a worker of speed 1
PAYLOAD = 0.93  # of a line's bits: headers of TCP, IP and Ethernet and acknowledgements take the rest
REPAIR = 120.0  # seconds that a failure takes a worker away


@dataclass(frozen=True)
class Link:
    """Bits per second and seconds; or texts such as "100 Mbit" and "1 ms"."""

    bandwidth: float = math.inf
    latency: float = 0.0
    shared: bool = False  # one line for all pairs that it connects, in each direction

    def __post_init__(self) -> None:
        for name, units in (("bandwidth", BITS), ("latency", SECONDS)):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, quantity(getattr(self, name), units, name))
        if not self.bandwidth > 0:
            raise UserError("bandwidth must be above zero: leave a pair out of the topology instead of its link")
        if not 0 <= self.latency < math.inf:
            raise UserError("latency must not be negative, nor without end")

    def seconds(self, bytes: float, messages: int = 1) -> float:
        """Of messages that begin at the same time, until the last has arrived."""
        return self.latency + 8.0 * bytes * messages / (PAYLOAD * self.bandwidth)


@dataclass
class Cluster:
    """Workers' rates in examples per second, and the links between them.

    between: links of pairs of workers; across: of pairs of sites, `("a", "a")` inside one. A pair counts before its sites, and
        these before `link`.
    jitter: how much the time of a step varies: its standard deviation as a part of its mean. One number, or one a worker.
    failures_per_hour: of simulated time, on average; each takes the worker away for `repair` seconds. Likewise.
    """

    rates: list[float]
    link: Link = field(default_factory=Link)
    between: dict[tuple[int, int], Link] = field(default_factory=dict)
    described: bool = True
    sites: list[str] = field(default_factory=list)
    across: dict[tuple[str, str], Link] = field(default_factory=dict)
    jitter: list[float] | float = 0.0
    failures_per_hour: list[float] | float = 0.0
    repair: list[float] | float = REPAIR

    def __post_init__(self) -> None:
        if not self.rates:
            raise UserError("a cluster needs at least one worker: add a [[workers]] table")
        for i, rate in enumerate(self.rates):
            if not (rate > 0 and math.isfinite(rate)):
                raise UserError(f"worker {i} of the cluster has rate {rate}: it must be a number above zero")
        self.jitter = self._each("jitter")
        self.failures_per_hour = self._each("failures_per_hour")
        self.repair = self._each("repair")
        self.sites = self.sites or [""] * self.size
        if len(self.sites) != self.size:
            raise UserError(f"sites = {self.sites}: give one for each of the {self.size} workers")
        for pair in self.across:
            for site in pair:
                if site not in self.sites:
                    raise UserError(
                        f"no worker is at site {site!r}: the sites are {', '.join(sorted(set(self.sites)))}"
                    )
        self.between = {(min(pair), max(pair)): link for pair, link in self.between.items()}
        self.across = {(min(pair), max(pair)): link for pair, link in self.across.items()}
        for a, b in self.between:
            if not 0 <= a < b < self.size:
                raise UserError(f"a link between workers {a} and {b}: they are 0 to {self.size - 1}")
        self._ports = self._speeds_of_ports()
        self._rings: dict[float, float] = {}

    def _each(self, name: str) -> list[float]:
        value = getattr(self, name)
        values = list(value) if isinstance(value, (list, tuple)) else [value] * self.size
        if len(values) != self.size:
            raise UserError(f"{name} = {value}: give one number, or one for each of the {self.size} workers")
        for one in values:
            if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one < math.inf:
                raise UserError(f"{name} = {one!r}: must be a number and not negative")
        return [float(one) for one in values]

    @property
    def size(self) -> int:
        return len(self.rates)

    def link_of(self, a: int, b: int) -> Link:
        found = self.between.get((min(a, b), max(a, b))) if self.between else None
        if found is None and self.across:
            one, two = self.sites[a], self.sites[b]
            found = self.across.get((one, two) if one <= two else (two, one))
        return self.link if found is None else found

    def line_of(self, a: int, b: int) -> tuple[Any, Any]:
        """What messages from a to b queue for: their own line, or that of their sites."""
        return (self.sites[a], self.sites[b]) if self.link_of(a, b).shared else (a, b)

    def port(self, rank: int) -> float:
        """Bits per second of a worker's connection to the network: as fast as its fastest link."""
        return self._ports[rank]

    def _speeds_of_ports(self) -> list[float]:
        fastest: list[float] = []
        by_site: dict[str, float] = {}
        known = {(min(pair), max(pair)) for pair in self.across}
        names = sorted(set(self.sites))
        for name in names:
            pairs = [(min(name, other), max(name, other)) for other in names]
            own = [self.across[pair].bandwidth for pair in pairs if pair in known]
            # The default link counts where any pair of this site still uses it.
            by_site[name] = max(own if len(own) == len(pairs) else [*own, self.link.bandwidth])
        for rank in range(self.size):
            fastest.append(by_site[self.sites[rank]])
        if self.between:
            seen: Counter[int] = Counter()
            best = [0.0] * self.size
            for (a, b), link in self.between.items():
                for rank in (a, b):
                    seen[rank] += 1
                    best[rank] = max(best[rank], link.bandwidth)
            for rank, count in seen.items():
                every = count >= self.size - 1
                fastest[rank] = best[rank] if every else max(best[rank], fastest[rank])
        return fastest

    def compute(self, rank: int, examples: float) -> float:
        return examples / self.rates[rank]

    def message(self, source: int, target: int, bytes: int) -> float:
        return self.link_of(source, target).seconds(bytes)

    def mean(self, bytes: int) -> float:
        return 2 * (self.size - 1) * self._ring(bytes / self.size)

    def gather(self, bytes: int) -> float:
        return (self.size - 1) * self._ring(bytes)

    def broadcast(self, source: int, bytes: int) -> float:
        """A pipeline would be faster for large vectors; a tree takes ceil(log2 N) hops of the slowest link."""
        return math.ceil(math.log2(self.size)) * self._ring(bytes) if self.size > 1 else 0.0

    def _ring(self, bytes: float) -> float:
        """One message from everybody to the next in the ring."""
        if self.size == 1:
            return 0.0
        if not self.between and not self.across:
            return self.link.seconds(bytes)
        if bytes not in self._rings:
            pairs = [(i, (i + 1) % self.size) for i in range(self.size)]
            lines = Counter(self.line_of(a, b) for a, b in pairs)
            self._rings[bytes] = max(self.link_of(a, b).seconds(bytes, lines[self.line_of(a, b)]) for a, b in pairs)
        return self._rings[bytes]

    @classmethod
    def uniform(cls, workers: int) -> Cluster:
        """Equal workers on a perfect network: what virtual workers run on unless a cluster is described."""
        return cls([DEFAULT_RATE] * workers, described=False)

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """Read a cluster file; anything unknown, missing or impossible in it is refused by name."""
        from ..core.toml import read_toml

        return cls.from_dict(read_toml(path), str(path))

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "cluster") -> Cluster:
        """What a cluster file says, as a dict."""
        from .cluster_file import read

        return cls(**read(table, where))

    def dump(self) -> str:
        """This cluster as the text of a cluster file."""
        from .cluster_file import written

        return written(self)

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_text(self.dump(), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None


class Traffic:
    """Messages under way: when each arrives, given all that were sent before it."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._out: dict[int, float] = {}  # when a worker's connection has sent what it was given,
        self._in: dict[int, float] = {}  # when it has received what is on its way to it,
        self._lines: dict[tuple[Any, Any], float] = {}  # and when a line is free again

    def send(self, source: int, now: float, bytes: Mapping[int, int]) -> dict[int, float]:
        """The arrivals of messages that are sent together, by target."""
        cluster, found = self.cluster, {}
        out = self._busy(self._out, source, now, sum(bytes.values()), cluster.port(source))
        for target, size in bytes.items():
            link = cluster.link_of(source, target)
            line = self._busy(self._lines, cluster.line_of(source, target), now, size, link.bandwidth)
            into = self._busy(self._in, target, now, size, cluster.port(target))
            found[target] = max(out, line, into) + link.latency
        return found

    @staticmethod
    def _busy(free: dict[Any, float], key: Any, now: float, bytes: int, bandwidth: float) -> float:
        free[key] = end = max(now, free.get(key, 0.0)) + 8.0 * bytes / (PAYLOAD * bandwidth)
        return end
