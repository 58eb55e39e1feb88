"""A described cluster: the throughput of each worker, bandwidth and latency of each link, and the time model.

A step takes examples / rate, times a random factor if the worker has jitter, and longer while the worker is slow or
away. A message of b bytes takes latency + b / (0.93 bandwidth) of its link. A worker has one full-duplex
connection to the network, as fast as its fastest link: messages that it sends at the same time share it, and so do
those that it receives. All workers of two sites share the line between them. A collective starts when its last worker
arrives and takes as long as a ring 0 - 1 - ... - N-1 - 0 over the slowest link: 2 (N - 1) messages of b / N bytes for a
mean, N - 1 messages of b bytes for a gather.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .spells import planned
from .units import BITS, SECONDS, quantity
from .units import duration as duration

DEFAULT_RATE = 1000.0  # examples per second of a worker of speed 1
PAYLOAD = 0.93  # of the bits of a link: TCP, IP and Ethernet headers and acknowledgements take the rest
REPAIR = 120.0  # seconds that a worker is away after a failure
SLOWDOWN, SLOWDOWN_FACTOR = 60.0, 3.0  # seconds that a slow-down lasts, and what it multiplies the time of a step by
DETECTION = 1.0  # seconds until the others know that a worker has failed
PER_WORKER = ("jitter", "failures_per_hour", "repair", "slowdowns_per_hour", "slowdown", "slowdown_factor")


@dataclass(frozen=True)
class Link:
    """Bits per second and seconds; or strings such as "100 Mbit" and "1 ms"."""

    bandwidth: float = math.inf
    latency: float = 0.0
    shared: bool = False  # all pairs that it connects share it, in each direction

    def __post_init__(self) -> None:
        for name, units in (("bandwidth", BITS), ("latency", SECONDS)):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, quantity(getattr(self, name), units, name))
        if not self.bandwidth > 0:
            raise UserError("bandwidth must be above zero: to disconnect a pair, leave it out of the topology")
        if not 0 <= self.latency < math.inf:
            raise UserError("latency must be finite and not negative")

    def seconds(self, bytes: float, messages: int = 1) -> float:
        """The time of messages that start together, until the last has arrived."""
        return self.latency + 8.0 * bytes * messages / (PAYLOAD * self.bandwidth)


@dataclass
class Cluster:
    """Workers' rates in examples per second, and the links between them.

    between: links of pairs of workers; across: links of pairs of sites, `("a", "a")` inside one. The link of a pair is
        that in `between`, else in `across`, else `link`.
    jitter: standard deviation of the time of a step, relative to its mean. One number, or one per worker.
    failures_per_hour: of simulated time, on average; after each the worker is away for `repair` seconds. One number, or
        one per worker.
    slowdowns_per_hour: likewise; each lasts `slowdown` seconds and multiplies the time of a step by `slowdown_factor`.
    away, slow: what is planned, by worker: `{2: [(60, 90)]}` takes worker 2 away from second 60 to 90, and `{2: [(60,
        90, 3.0)]}` lets its steps take three times as long. An end of `math.inf` is for good.
    detection: seconds until the others know that a worker has failed, where they go on without it.
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
    slowdowns_per_hour: list[float] | float = 0.0
    slowdown: list[float] | float = SLOWDOWN
    slowdown_factor: list[float] | float = SLOWDOWN_FACTOR
    away: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)
    slow: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)
    detection: float = DETECTION

    def __post_init__(self) -> None:
        if not self.rates:
            raise UserError("a cluster needs at least one worker: add a [[workers]] table")
        for i, rate in enumerate(self.rates):
            if not (rate > 0 and math.isfinite(rate)):
                raise UserError(f"worker {i} of the cluster has rate {rate}: it must be a number above zero")
        for name in PER_WORKER:
            setattr(self, name, self._per_worker(name))
        self.away, self.slow = self._planned("away"), self._planned("slow")
        if not 0 <= self.detection < math.inf:
            raise UserError(f"detection = {self.detection}: must be a number of seconds and not negative")
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
        self._ports = self._port_bandwidths()
        self._rings: dict[float, float] = {}

    def _per_worker(self, name: str) -> list[float]:
        value = getattr(self, name)
        values = list(value) if isinstance(value, (list, tuple)) else [value] * self.size
        if len(values) != self.size:
            raise UserError(f"{name} = {value}: give one number, or one for each of the {self.size} workers")
        for number in values:
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
                raise UserError(f"{name} = {number!r}: must be a number and not negative")
            if name == "slowdown_factor" and number == 0:
                raise UserError("slowdown_factor = 0: must be above zero")
        return [float(number) for number in values]

    def _planned(self, kind: str) -> dict[int, list[tuple[float, ...]]]:
        for worker in getattr(self, kind):
            if not 0 <= worker < self.size:
                raise UserError(f"{kind} names worker {worker}: they are 0 to {self.size - 1}")
        return {worker: planned(rows, worker, kind) for worker, rows in sorted(getattr(self, kind).items()) if rows}

    def disturbances(self, worker: int) -> dict[str, Any]:
        """What may befall a worker: numbers by name, and what is planned for it."""
        numbers = {name: getattr(self, name)[worker] for name in PER_WORKER}
        return {**numbers, "away": self.away.get(worker, []), "slow": self.slow.get(worker, [])}

    @property
    def size(self) -> int:
        return len(self.rates)

    def link_of(self, a: int, b: int) -> Link:
        link = self.between.get((min(a, b), max(a, b))) if self.between else None
        if link is None and self.across:
            one, two = self.sites[a], self.sites[b]
            link = self.across.get((one, two) if one <= two else (two, one))
        return self.link if link is None else link

    def line_of(self, a: int, b: int) -> tuple[Any, Any]:
        """The line on which messages from a to b queue: that of the pair, or that of their sites."""
        return (self.sites[a], self.sites[b]) if self.link_of(a, b).shared else (a, b)

    def port(self, rank: int) -> float:
        """Bits per second of a worker's connection to the network: as fast as its fastest link."""
        return self._ports[rank]

    def _port_bandwidths(self) -> list[float]:
        fastest: list[float] = []
        by_site: dict[str, float] = {}
        names = sorted(set(self.sites))
        for name in names:
            pairs = [(min(name, other), max(name, other)) for other in names]
            own = [self.across[pair].bandwidth for pair in pairs if pair in self.across]
            # The default link counts if some pair of this site uses it.
            by_site[name] = max(own if len(own) == len(pairs) else [*own, self.link.bandwidth])
        for rank in range(self.size):
            fastest.append(by_site[self.sites[rank]])
        if self.between:
            pairs_of: Counter[int] = Counter()
            best = [0.0] * self.size
            for (a, b), link in self.between.items():
                for rank in (a, b):
                    pairs_of[rank] += 1
                    best[rank] = max(best[rank], link.bandwidth)
            for rank, count in pairs_of.items():
                has_all = count >= self.size - 1
                fastest[rank] = best[rank] if has_all else max(best[rank], fastest[rank])
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
        """A tree: ceil(log2 N) hops over the slowest link. (A pipeline would be faster for large vectors.)"""
        return math.ceil(math.log2(self.size)) * self._ring(bytes) if self.size > 1 else 0.0

    def _ring(self, bytes: float) -> float:
        """The time of one message from every rank to the next in the ring."""
        if self.size == 1:
            return 0.0
        if not self.between and not self.across:
            return self.link.seconds(bytes)
        if bytes not in self._rings:
            pairs = [(i, (i + 1) % self.size) for i in range(self.size)]
            lines = Counter(self.line_of(a, b) for a, b in pairs)
            self._rings[bytes] = max(self.link_of(a, b).seconds(bytes, lines[self.line_of(a, b)]) for a, b in pairs)
        return self._rings[bytes]

    def of(self, workers: Sequence[int]) -> Cluster:
        """These workers alone, in this order, with the links between them."""
        place = {worker: i for i, worker in enumerate(workers)}
        sites = [self.sites[w] for w in workers]
        numbers: dict[str, Any] = {name: [getattr(self, name)[w] for w in workers] for name in PER_WORKER}
        return dataclasses.replace(
            self,
            rates=[self.rates[w] for w in workers],
            between={(place[a], place[b]): link for (a, b), link in self.between.items() if {a, b} <= {*place}},
            sites=sites,
            across={pair: link for pair, link in self.across.items() if {*pair} <= {*sites}},
            away={place[w]: rows for w, rows in self.away.items() if w in place},
            slow={place[w]: rows for w, rows in self.slow.items() if w in place},
            **numbers,
        )

    @classmethod
    def uniform(cls, workers: int) -> Cluster:
        """Equal workers on a perfect network: the default of virtual workers."""
        return cls([DEFAULT_RATE] * workers, described=False)

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """Read a cluster file; errors name the entry that is unknown, missing or invalid."""
        from ..core.toml import read_toml

        return cls.from_dict(read_toml(path), str(path))

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "cluster") -> Cluster:
        """From the content of a cluster file."""
        from .cluster_file import read

        return cls(**read(table, where))

    def dump(self) -> str:
        """The content of a cluster file that describes this cluster."""
        from .cluster_file import to_toml

        return to_toml(self)

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_text(self.dump(), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None


class Traffic:
    """The arrival times of messages, given all messages sent before."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        # The times until which these are busy: a worker's connection in both directions, and each line.
        self._out: dict[int, float] = {}
        self._in: dict[int, float] = {}
        self._lines: dict[tuple[Any, Any], float] = {}

    def send(self, source: int, now: float, bytes: Mapping[int, int]) -> dict[int, float]:
        """The arrival times, by target, of messages that are sent together."""
        cluster, arrivals = self.cluster, {}
        out = self._queue(self._out, source, now, sum(bytes.values()), cluster.port(source))
        for target, size in bytes.items():
            link = cluster.link_of(source, target)
            line = self._queue(self._lines, cluster.line_of(source, target), now, size, link.bandwidth)
            into = self._queue(self._in, target, now, size, cluster.port(target))
            arrivals[target] = max(out, line, into) + link.latency
        return arrivals

    @staticmethod
    def _queue(busy_until: dict[Any, float], key: Any, now: float, bytes: int, bandwidth: float) -> float:
        busy_until[key] = end = max(now, busy_until.get(key, 0.0)) + 8.0 * bytes / (PAYLOAD * bandwidth)
        return end
