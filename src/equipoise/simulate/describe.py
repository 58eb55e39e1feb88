"""A described cluster in words."""

from __future__ import annotations

import itertools
from typing import Any

from .cluster import Cluster, Link
from .units import bits, seconds


def describe(cluster: Cluster) -> list[tuple[str, str]]:
    """Names and values: each group of equal workers, each kind of link, and what they mean for a run."""
    speeds = len(set(cluster.rates))
    rows = [("workers", f"{cluster.size}, {f'{speeds} different speeds' if speeds > 1 else 'equally fast'}")]
    workers = [(cluster.rates[w], cluster.sites[w], cluster.disturbances(w)) for w in range(cluster.size)]
    first = 0
    for (rate, site, about), group in itertools.groupby(workers):
        last = first + len(list(group)) - 1
        parts = [f"{rate:,.6g} examples/s", *([f"site {site}"] if site else []), *describe_disturbances(about)]
        rows.append((f"  {first}" if first == last else f"  {first} to {last}", ", ".join(parts)))
        first = last + 1
    if not (cluster.across and len(cluster.across) == len(set(cluster.sites)) * (len(set(cluster.sites)) + 1) // 2):
        rows.append(("links", describe_link(cluster.link)))
    for (one, two), link in cluster.across.items():
        rows.append((f"  inside {one}" if one == two else f"  {one} to {two}", describe_link(link)))
    for (a, b), link in cluster.between.items():
        rows.append((f"  {a} to {b}", describe_link(link)))
    if cluster.size > 1:
        rows.append(("all-reduce of 4 MB", seconds(float(f"{cluster.mean(4_000_000):.3g}"))))
        fastest, slowest = max(cluster.rates), min(cluster.rates)
        if fastest > slowest:
            idle = f"{100 * (1 - slowest / fastest):.0f} %"
            rows.append(("straggler cost", f"with equal batches the fastest worker waits {idle} of its time"))
    return rows


def describe_disturbances(about: dict[str, Any]) -> list[str]:
    """What may befall a worker, in words."""
    parts = [f"jitter {100 * about['jitter']:.3g} %"] if about["jitter"] else []
    if about["failures_per_hour"]:
        parts.append(f"{about['failures_per_hour']:.3g} failures/h, {seconds(about['repair'])} each")
    if about["slowdowns_per_hour"]:
        times = f"{about['slowdown_factor']:.3g} times as slow for {seconds(about['slowdown'])}"
        parts.append(f"{about['slowdowns_per_hour']:.3g} slow-downs/h, {times}")
    for start, end, *factor in (*about["away"], *about["slow"]):
        what = f"{factor[0]:.3g} times as slow" if factor else "away"
        when = f"from {seconds(start)} to {seconds(end)}" if end < float("inf") else f"from {seconds(start)} on"
        parts.append(f"{what} {when}")
    return parts


def describe_link(link: Link) -> str:
    bandwidth = bits(float(f"{link.bandwidth:.4g}")) if link.bandwidth < float("inf") else "no limit"
    return f"{bandwidth}, {seconds(link.latency)}{', shared by all pairs' if link.shared else ''}"
