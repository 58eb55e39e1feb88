"""Cluster files.

[[workers]]             # one table per worker, or `count = 8` for several equal ones
speed = 2.0             # relative to 1.0, or `examples_per_second = 900`
jitter = 0.1            # of the time of a step
failures_per_hour = 0.5
repair = "2 min"
slowdowns_per_hour = 2
slowdown = "1 min"
slowdown_factor = 3
away = [{ from = "10 min", until = "12 min" }]
slow = [{ from = "20 min", until = "30 min", factor = 2 }]
site = "a"
[links]
bandwidth = "100 Mbit"  # per link and direction
latency = "1 ms"
[[links.between]]       # other links: among these `workers`, between `groups` of workers, or between `sites`
sites = ["a", "b"]
bandwidth = "10 Mbit"
"""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, did_you_mean
from ..core.torchrun import MOST_WORKERS
from .cluster import DEFAULT_RATE, DETECTION, PER_WORKER, REPAIR, SLOWDOWN, SLOWDOWN_FACTOR, Link
from .spells import moment
from .units import BITS, SECONDS, bits, duration, quantity, seconds

if TYPE_CHECKING:
    from .cluster import Cluster

_WORKER = {"speed", "examples_per_second", "count", "site", *PER_WORKER, "away", "slow"}
_DURATIONS = {"repair": REPAIR, "slowdown": SLOWDOWN}
_NUMBERS = {"jitter": 0.0, "failures_per_hour": 0.0, "slowdowns_per_hour": 0.0, "slowdown_factor": SLOWDOWN_FACTOR}
_WHICH = "give workers = [a, b, ...], groups = [[...], [...]] or sites = [...]"


def read(table: dict[str, Any], where: str) -> dict[str, Any]:
    """The arguments of `Cluster`; errors name the entry that is unknown, missing or invalid."""
    _only(table, {"workers", "links", "examples_per_second", "detection"}, where)
    base = _rate(table.get("examples_per_second", DEFAULT_RATE), f"{where}: examples_per_second")
    workers: dict[str, list[Any]] = {key: [] for key in ("rates", "sites", *PER_WORKER, "away", "slow")}
    for i, row in enumerate(_rows(table, "workers", f"{where}: [[workers]]")):
        place = f"{where}: [[workers]] number {i + 1}"
        count = row.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_WORKERS:
            raise UserError(f"{place}: count = {count!r} must be an integer from 1 to {MOST_WORKERS:,}")
        for key, value in _worker(row, base, place).items():
            workers[key] += [value] * count
    links = table.get("links", {})
    if not isinstance(links, dict):
        raise UserError(f"{where}: links must be a table: write [links]")
    _only(links, {"bandwidth", "latency", "between"}, f"{where}: [links]")
    link = _link(links, Link(), f"{where}: [links]")
    between: dict[tuple[int, int], Link] = {}
    across: dict[tuple[str, str], Link] = {}
    rows = _rows(links, "between", f"{where}: [[links.between]]")
    for i, row in enumerate(rows):
        place = f"{where}: [[links.between]] number {i + 1}"
        _only(row, {"workers", "groups", "sites", "bandwidth", "latency", "shared"}, place)
        if "sites" in row:
            # Two sites have one line between them, which all their workers share, unless the file says otherwise.
            for one, two in _sites(row, workers["sites"], place):
                across[min(one, two), max(one, two)] = _link(row, link, place, one != two)
        else:
            for a, b in _pairs(row, len(workers["rates"]), place):
                between[min(a, b), max(a, b)] = _link(row, link, place)
    if rows and "bandwidth" not in links and "latency" not in links:
        _refuse_gaps(workers["sites"], between, across, where)
    plans = {kind: {w: rows for w, rows in enumerate(workers.pop(kind)) if rows} for kind in ("away", "slow")}
    detection = moment(table.get("detection", DETECTION), f"{where}: detection")
    return {**workers, **plans, "link": link, "between": between, "across": across, "detection": detection}


def _worker(row: dict[str, Any], base: float, place: str) -> dict[str, Any]:
    _only(row, _WORKER, place)
    if "speed" in row and "examples_per_second" in row:
        raise UserError(f"{place} has both speed and examples_per_second: keep one")
    if "examples_per_second" in row:
        rate = _rate(row["examples_per_second"], f"{place}: its examples_per_second")
    else:
        rate = base * _rate(row.get("speed", 1.0), f"{place}: its speed")
    site = row.get("site", "")
    if not isinstance(site, str):
        raise UserError(f'{place}: site = {site!r} must be a name in quotes, such as "a"')
    worker: dict[str, Any] = {"rates": rate, "sites": site}
    for key, usual in _DURATIONS.items():
        worker[key] = duration(row.get(key, usual), f"{place}: {key}")
    for key in ("away", "slow"):
        worker[key] = [_spell(one, key == "slow", f"{place}: {key}") for one in _rows(row, key, f"{place}: {key}")]
    for key, usual in _NUMBERS.items():
        value = row.get(key, usual)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise UserError(f"{place}: {key} = {value!r} must be a number and not negative")
        worker[key] = value
    return worker


def _spell(row: dict[str, Any], slow: bool, place: str) -> tuple[Any, ...]:
    """`{ from = "10 s", until = "40 s" }`; without an end it is for good. A slow one has a factor."""
    _only(row, {"from", "until", "factor"} if slow else {"from", "until"}, place)
    if "from" not in row:
        raise UserError(f'{place}: say when it begins, such as from = "10 min"')
    start = moment(row["from"], f"{place}: from")
    end = moment(row["until"], f"{place}: until") if "until" in row else math.inf
    return (start, end, row.get("factor", SLOWDOWN_FACTOR)) if slow else (start, end)


def _rate(value: Any, what: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UserError(f"{what} = {value!r} must be a number above zero")
    return float(value)


def _rows(table: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{where} must be an array of tables: write it in double brackets")
    return rows


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UserError(f"{where}: unknown key {key!r}: {did_you_mean(key, sorted(known))}")


def _link(row: dict[str, Any], default: Link, where: str, shared: bool = False) -> Link:
    bandwidth = quantity(row["bandwidth"], BITS, f"{where}: bandwidth") if "bandwidth" in row else default.bandwidth
    latency = quantity(row["latency"], SECONDS, f"{where}: latency") if "latency" in row else default.latency
    shared = row.get("shared", shared)
    if not isinstance(shared, bool) or (shared and "sites" not in row):
        raise UserError(f"{where}: shared = {shared!r} must be true or false, and goes with sites")
    try:
        return Link(bandwidth, latency, shared)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _pairs(row: dict[str, Any], size: int, where: str) -> list[tuple[int, int]]:
    """`workers = [0, 3]`: all pairs among these; `groups = [[0, 1], [2, 3]]`: all pairs between groups."""
    groups = row.get("groups")
    for key in ("groups", "workers"):
        lists = [row.get(key, [])]
        if key == "groups" and isinstance(groups, list):
            lists += groups
        if not all(isinstance(each, list) for each in lists):
            raise UserError(f"{where}: {_WHICH}")
    members = [w for group in groups for w in group] if groups is not None else row.get("workers", [])
    for worker in members:
        if not isinstance(worker, int) or not 0 <= worker < size:
            raise UserError(f"{where}: worker {worker!r} is not one of 0 to {size - 1}")
    if len(set(members)) != len(members):
        raise UserError(f"{where} names a worker twice: {members}")
    if groups is None:
        if len(members) < 2:
            raise UserError(f"{where}: {_WHICH}")
        return list(itertools.combinations(members, 2))
    return [(a, b) for one, two in itertools.combinations(groups, 2) for a in one for b in two]


def _sites(row: dict[str, Any], known: list[str], where: str) -> list[tuple[str, str]]:
    """`sites = ["a"]`: inside this site; `sites = ["a", "b", "c"]`: between every two of these."""
    names = row["sites"]
    if not isinstance(names, list) or not names or "workers" in row or "groups" in row:
        raise UserError(f"{where}: {_WHICH}, one of them")
    for name in names:
        if name not in known or name == "":
            names_known = sorted(set(known) - {""})
            fix = did_you_mean(str(name), names_known) if names_known else 'give workers a site = "..."'
            raise UserError(f"{where}: no worker is at site {name!r}: {fix}")
    if len(set(names)) != len(names):
        raise UserError(f"{where} names a site twice: {names}")
    return [(names[0], names[0])] if len(names) == 1 else list(itertools.combinations(names, 2))


def _refuse_gaps(
    sites: list[str], between: dict[tuple[int, int], Link], across: dict[tuple[str, str], Link], where: str
) -> None:
    """A file that names some links and has no default must name them all."""
    for a, b in itertools.combinations(range(len(sites)), 2):
        if (a, b) not in between and (min(sites[a], sites[b]), max(sites[a], sites[b])) not in across:
            raise UserError(
                f"{where}: there is no link between workers {a} and {b}: add bandwidth and latency under [links] as "
                "the default, or a [[links.between]] for these"
            )


def to_toml(cluster: Cluster) -> str:
    """A cluster as TOML; consecutive equal workers become one table."""
    lines = [] if cluster.detection == DETECTION else [f'detection = "{seconds(cluster.detection)}"']
    rows = [(cluster.rates[w], cluster.sites[w], cluster.disturbances(w)) for w in range(cluster.size)]
    for (rate, site, about), equal in itertools.groupby(rows):
        lines.append("[[workers]]")
        count = len(list(equal))
        lines += [f"count = {count}"] if count > 1 else []
        lines.append(f"examples_per_second = {rate!r}")
        lines += [f"site = {_quoted(site)}"] if site else []
        for name, usual in {**_NUMBERS, **_DURATIONS}.items():
            text = f'"{seconds(about[name])}"' if name in _DURATIONS else repr(about[name])
            lines += [f"{name} = {text}"] if about[name] != usual else []
        lines += [f"{kind} = [{', '.join(map(_spell_text, about[kind]))}]" for kind in ("away", "slow") if about[kind]]
    lines += ["[links]", *_link_lines(cluster.link)]
    for (one, two), link in cluster.across.items():
        sites = [one] if one == two else [one, two]
        lines += ["[[links.between]]", f"sites = [{', '.join(map(_quoted, sites))}]", *_link_lines(link)]
        lines += [f"shared = {str(link.shared).lower()}"] if link.shared != (one != two) else []
    for (a, b), link in cluster.between.items():
        lines += ["[[links.between]]", f"workers = [{a}, {b}]", *_link_lines(link)]
    return "\n".join(lines) + "\n"


def _spell_text(row: tuple[float, ...]) -> str:
    parts = [f'from = "{seconds(row[0])}"']
    parts += [f'until = "{seconds(row[1])}"'] if row[1] < math.inf else []
    parts += [f"factor = {row[2]!r}"] if len(row) > 2 else []
    return f"{{ {', '.join(parts)} }}"


def _link_lines(link: Link) -> list[str]:
    bandwidth = bits(link.bandwidth) if link.bandwidth < math.inf else "1e999 bit"
    return [f'bandwidth = "{bandwidth}"', f'latency = "{seconds(link.latency)}"']


def _quoted(value: str) -> str:
    return json.dumps(value)
