"""Sites and links: what a file says, what is refused, what it costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from equipoise.core.errors import UserError
from equipoise.core.toml import read_toml
from equipoise.simulate.cluster import PAYLOAD, Cluster, Link, Traffic

LINK = Link(8e6 / PAYLOAD, 1e-3)  # a byte in a microsecond
FOUR = [{"count": 2, "site": "a"}, {"count": 2, "site": "b"}]


def described(**links: Any) -> Cluster:
    return Cluster.from_dict({"workers": FOUR, "links": links})


def test_a_pair_counts_before_its_sites_and_these_before_the_rest() -> None:
    cluster = described(
        bandwidth="1 Gbit",
        between=[
            {"workers": [0, 2], "latency": "5 ms"},
            {"sites": ["b", "a"], "bandwidth": "10 Mbit", "latency": "20 ms"},
            {"sites": ["b"], "bandwidth": "10 Gbit"},
        ],
    )
    assert cluster.link_of(0, 1) == Link(1e9)
    assert cluster.link_of(3, 2) == Link(1e10)
    assert cluster.link_of(0, 2) == Link(1e9, 5e-3)
    assert cluster.link_of(2, 1) == cluster.link_of(1, 2) == Link(1e7, 20e-3, shared=True)
    assert [cluster.port(k) for k in range(4)] == [1e9, 1e9, 1e10, 1e10], "a connection is as fast as its fastest link"


def test_all_of_two_sites_share_the_line_between_them() -> None:
    slow = Link(8e5 / PAYLOAD, 1e-3, shared=True)
    traffic = Traffic(Cluster([1.0] * 4, LINK, sites=["a", "a", "b", "b"], across={("a", "b"): slow}))
    assert traffic.send(0, 0.0, {2: 1000}) == {2: pytest.approx(11e-3)}
    assert traffic.send(1, 0.0, {3: 1000}) == {3: pytest.approx(21e-3)}
    assert traffic.send(2, 0.0, {0: 1000}) == {0: pytest.approx(11e-3)}, "the other direction is free"
    assert traffic.send(0, 0.0, {1: 1000}) == {1: pytest.approx(3e-3)}, (
        "and so is the site itself, behind what 0 sent first"
    )


def test_a_ring_that_crosses_a_shared_line_twice_takes_it_in_turns() -> None:
    slow = Link(8e5 / PAYLOAD, 1e-3, shared=True)
    inside, turns = (Cluster([1.0] * 4, LINK, sites=list(s), across={("a", "b"): slow}) for s in ("aabb", "abab"))
    assert inside.mean(4000) == pytest.approx(6 * (1e-3 + 10e-3))
    assert turns.mean(4000) == pytest.approx(6 * (1e-3 + 20e-3))


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({"between": [{"workers": [0, 1], "bandwidth": "1 Mbit"}]}, "no link between workers 0 and 2: add bandwidth"),
        ({"between": [{"sites": ["a", "b"], "bandwidth": "1 Mbit"}]}, "no link between workers 0 and 1"),
        ({"between": [{"sites": ["a", "c"]}]}, "no worker is at site 'c'"),
        ({"between": [{"sites": "a"}]}, r"give workers = \[a, b"),
        ({"between": [{"sites": ["a", "a"]}]}, "names a site twice"),
        ({"between": [{"workers": [1, 1]}]}, "names a worker twice"),
        ({"between": [{"workers": [0, 1], "shared": True}]}, "goes with sites"),
        ({"between": [{"sites": ["a", "b"], "bandwidth": "0 Mbit"}]}, "number 1: bandwidth must be above zero"),
        ({"between": [{"sites": ["a", "b"], "bandwidth": "3 parsec"}]}, "write a number and one of bit"),
        ({"between": [{"sites": ["a", "b"], "speed": 1}]}, "unknown key 'speed'"),
    ],
)
def test_links_that_are_missing_or_impossible(links: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        described(**links)


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({"jitter": -0.1}, "jitter = -0.1 must be a number and not negative"),
        ({"jitter": "much"}, "jitter = 'much'"),
        ({"failures_per_hour": math.inf}, "failures_per_hour = inf"),
        ({"repair": "2 parsec"}, "repair = '2 parsec'.*one of us, ms, s"),
        ({"site": 3}, "site = 3 must be a name in quotes"),
        ({"slowdown": -2}, "slowdown = -2: must be above zero"),
        ({"away": [{"until": "3 s"}]}, "away: say when it begins"),
        ({"away": [{"from": 5, "factor": 2}]}, "away: unknown key 'factor'"),
        ({"away": {"from": 5}}, "must be an array of tables"),
        ({"away": [{"from": 5, "until": 5}]}, "must end after it begins"),
        ({"slow": [{"from": 5, "until": 7}, {"from": 6}]}, "begin after the end of the one before"),
        ({"slow": [{"from": 5, "factor": 0}]}, "the factor must be a number above zero"),
        ({"slow": [{"from": "5 parsec"}]}, "one of us, ms, s"),
    ],
)
def test_workers_that_are_impossible(worker: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Cluster.from_dict({"workers": [worker]})


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"jitter": [0.1]}, "one for each of the 2 workers"),
        ({"repair": -1.0}, "not negative"),
        ({"slowdown_factor": 0.0}, "slowdown_factor = 0: must be above zero"),
        ({"detection": -1.0}, "detection = -1.0"),
        ({"away": {2: [(1, 2)]}}, "away names worker 2: they are 0 to 1"),
        ({"away": {1: [(1, 2, 3)]}}, r"give when it begins and ends, as \(60, 90\)"),
        ({"sites": ["a"]}, "one for each of the 2 workers"),
        ({"across": {("a", "b"): Link()}}, "no worker is at site 'a'"),
        ({"between": {(0, 2): Link()}}, "they are 0 to 1"),
    ],
)
def test_invalid_arguments_in_python(how: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Cluster([1.0, 1.0], **how)


def test_a_cluster_comes_back_from_its_file(tmp_path: Path) -> None:
    cluster = Cluster(
        [100.0, 100.0, 33.3],
        Link("100 Mbit", "1.5 ms"),
        {(0, 1): Link("2 Gbit", "50 us")},
        sites=["a", "a", "b"],
        across={("a", "b"): Link("10 Mbit", "20 ms", shared=True), ("a", "a"): Link("1 Gbit")},
        jitter=[0.1, 0.1, 0.0],
        failures_per_hour=[0.0, 0.0, 2.0],
        repair=[120.0, 120.0, 90.0],
        slowdowns_per_hour=[0.0, 0.0, 4.0],
        slowdown=[60.0, 60.0, 5.0],
        slowdown_factor=[3.0, 3.0, 1.5],
        away={1: [(0, 2.5), ("2 min", math.inf)]},
        slow={2: [(30, 60, 2.0)]},
        detection=0.25,
    )
    cluster.save(tmp_path / "c.toml")
    assert Cluster.load(tmp_path / "c.toml") == cluster
    assert "count" not in cluster.dump().split("[links]")[1]
    with pytest.raises(UserError, match="cannot write"):
        cluster.save(tmp_path / "none" / "c.toml")
    perfect = Cluster([5.0])
    perfect.save(tmp_path / "p.toml")
    assert Cluster.from_dict(read_toml(tmp_path / "p.toml")) == perfect
