"""A described cluster: how fast each worker is, how fast and how far each link.

    [[workers]]            # one table per worker, or `count = 8` for several alike
    speed = 2.0            # relative to 1.0, or `examples_per_second = 900`
    [links]
    bandwidth = "100 Mbit" # per link and direction; `[[links.between]]` overrides a pair or a group
    latency = "1 ms"

Time model. A worker needs examples / examples_per_second for a step. A message of b bytes over a link takes
latency + b / bandwidth; messages over different links do not disturb each other. A collective starts when its last member
arrives and then takes as long as its ring: 2 (N - 1) messages of b / N bytes for a mean, N - 1 messages of b bytes for a gather,
over the slowest link of the ring 0 - 1 - ... - N-1 - 0.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError

_BITS = {"bit": 1, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "B": 8, "kB": 8e3, "MB": 8e6, "GB": 8e9}
_BITS |= {"bps": 1, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
DEFAULT_RATE = 1000.0  # examples per second of a worker of speed 1


def quantity(text: Any, units: dict[str, float], what: str) -> float:
    """'100 Mbit' or '1 ms' as a number in the base unit of `units`."""
    match = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([a-zA-Z]+)?(?:/s)?\s*", str(text))
    try:
        value = float(match[1]) if match else math.nan
    except ValueError:
        value = math.nan
    unit = (match[2] if match else None) or ""
    if re.fullmatch("[kKmMgG]?b", unit) and "B" in units:
        raise UserError(f"{what} = {text!r}: bits or bytes? write {unit}it for bits, {unit[:-1]}B for bytes")
    known = {name.lower(): factor for name, factor in units.items()}
    if math.isnan(value) or (unit and unit.lower() not in known):
        raise UserError(
            f"{what} = {text!r}: write a number and one of {', '.join(units)}, such as '100 {list(units)[2]}'"
        )
    if not unit and value != 0 and not math.isinf(value):
        raise UserError(f"{what} = {text!r} has no unit: add one of {', '.join(units)}")
    return value * known.get(unit.lower(), 1.0)


def duration(text: Any, what: str = "duration") -> float:
    """'10m', '90 s' or plain seconds."""
    number = isinstance(text, (int, float)) and not isinstance(text, bool)
    if number or re.fullmatch(r"\s*[0-9]+(\.[0-9]*)?\s*", str(text)):
        seconds = float(text)
    else:
        seconds = quantity(text, _SECONDS, what)
    if not seconds > 0:
        raise UserError(f"{what} = {text!r}: must be above zero")
    return seconds


@dataclass(frozen=True)
class Link:
    bandwidth: float = math.inf  # bits per second
    latency: float = 0.0  # seconds

    def seconds(self, bytes: float) -> float:
        return self.latency + 8.0 * bytes / self.bandwidth


@dataclass
class Cluster:
    """Workers' rates in examples per second, and the links between them."""

    rates: list[float]
    link: Link = field(default_factory=Link)
    between: dict[tuple[int, int], Link] = field(default_factory=dict)
    described: bool = True

    def __post_init__(self) -> None:
        if not self.rates:
            raise UserError("a cluster needs at least one worker: add a [[workers]] table")
        for i, rate in enumerate(self.rates):
            if not (rate > 0 and math.isfinite(rate)):
                raise UserError(f"worker {i} of the cluster has rate {rate}: it must be a number above zero")

    @property
    def size(self) -> int:
        return len(self.rates)

    def link_of(self, a: int, b: int) -> Link:
        return self.between.get((min(a, b), max(a, b)), self.link)

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
        if self.size == 1:
            return 0.0
        if not self.between:
            return self.link.seconds(bytes)
        return max(self.link_of(i, (i + 1) % self.size).seconds(bytes) for i in range(self.size))

    @classmethod
    def uniform(cls, workers: int) -> Cluster:
        """Equal workers on a perfect network: what virtual workers run on unless a cluster is described."""
        return cls([DEFAULT_RATE] * workers, described=False)

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """Read a cluster file; anything unknown, missing or impossible in it is refused by name."""
        from ..recipe import read_toml

        return cls.from_dict(read_toml(path), str(path))

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "cluster") -> Cluster:
        _only(table, {"workers", "links", "examples_per_second"}, where)
        base = _rate(table.get("examples_per_second", DEFAULT_RATE), f"{where}: examples_per_second")
        rates: list[float] = []
        for i, row in enumerate(_rows(table, "workers", f"{where}: [[workers]]")):
            place = f"{where}: [[workers]] number {i + 1}"
            _only(row, {"speed", "examples_per_second", "count"}, place)
            if "speed" in row and "examples_per_second" in row:
                raise UserError(f"{place} has both speed and examples_per_second: keep one")
            if "examples_per_second" in row:
                rate = _rate(row["examples_per_second"], f"{place}: its examples_per_second")
            else:
                rate = base * _rate(row.get("speed", 1.0), f"{place}: its speed")
            count = row.get("count", 1)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise UserError(f"{place}: count = {count!r} must be a whole number of at least 1")
            rates += [rate] * count
        links = table.get("links", {})
        if not isinstance(links, dict):
            raise UserError(f"{where}: links must be a table: write [links]")
        _only(links, {"bandwidth", "latency", "between"}, f"{where}: [links]")
        link = _link(links, Link(), f"{where}: [links]")
        between: dict[tuple[int, int], Link] = {}
        for i, row in enumerate(_rows(links, "between", f"{where}: [[links.between]]")):
            place = f"{where}: [[links.between]] number {i + 1}"
            _only(row, {"workers", "groups", "bandwidth", "latency"}, place)
            for a, b in _pairs(row, len(rates), place):
                between[min(a, b), max(a, b)] = _link(row, link, place)
        return cls(rates, link, between)


def _rate(value: Any, what: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UserError(f"{what} = {value!r} must be a number above zero")
    return float(value)


def _rows(table: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{where} must be tables in double brackets, one for each of them")
    return rows


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    from ..errors import did_you_mean

    for key in table:
        if key not in known:
            raise UserError(f"{where}: unknown key {key!r}: {did_you_mean(key, sorted(known))}")


def _link(row: dict[str, Any], default: Link, where: str) -> Link:
    bandwidth = quantity(row["bandwidth"], _BITS, f"{where}: bandwidth") if "bandwidth" in row else default.bandwidth
    latency = quantity(row["latency"], _SECONDS, f"{where}: latency") if "latency" in row else default.latency
    if not bandwidth > 0:
        raise UserError(f"{where}: bandwidth must be above zero: leave a pair out of the topology instead of its link")
    if not latency >= 0:
        raise UserError(f"{where}: latency must not be negative")
    return Link(bandwidth, latency)


def _pairs(row: dict[str, Any], size: int, where: str) -> list[tuple[int, int]]:
    """`workers = [0, 3]`: all pairs among these; `groups = [[0, 1], [2, 3]]`: all pairs across groups."""
    groups = row.get("groups")
    for key in ("groups", "workers"):
        if not all(isinstance(x, list) for x in [row.get(key, []), *(groups or [] if key == "groups" else [])]):
            raise UserError(f"{where}: give workers = [a, b, ...] or groups = [[...], [...]]")
    members = [w for group in groups for w in group] if groups is not None else row.get("workers", [])
    for worker in members:
        if not isinstance(worker, int) or not 0 <= worker < size:
            raise UserError(f"{where}: worker {worker!r} is not one of 0 to {size - 1}")
    if groups is None:
        if len(members) < 2:
            raise UserError(f"{where}: give workers = [a, b, ...] or groups = [[...], [...]]")
        return [(a, b) for i, a in enumerate(members) for b in members[i + 1 :]]
    return [(a, b) for i, one in enumerate(groups) for two in groups[i + 1 :] for a in one for b in two]
