"""Described clusters: what is read, what is refused, and the time model by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.core.errors import UserError
from equipoise.simulate.cluster import DEFAULT_RATE, PAYLOAD, Cluster, Link

TWO = [{"count": 2}]


# -- files --------------------------------------------------------------------------------------------------------
def test_a_complete_description() -> None:
    cluster = Cluster.from_dict(
        {
            "examples_per_second": 500,
            "workers": [{"speed": 2.0}, {"count": 2}, {"examples_per_second": 90}],
            "links": {
                "bandwidth": "100 Mbit",
                "latency": "1 ms",
                "between": [
                    {"workers": [0, 3], "bandwidth": "1 Gbit"},
                    {"groups": [[0, 1], [2]], "latency": "20 ms"},
                    {"workers": [3, 0], "latency": "5 ms"},
                ],
            },
        }
    )
    assert cluster.rates == [1000.0, 500.0, 500.0, 90.0]
    assert cluster.size == 4
    assert cluster.described
    assert cluster.link_of(0, 1) == cluster.link_of(1, 0) == Link(1e8, 1e-3)
    assert cluster.link_of(0, 2) == cluster.link_of(2, 1) == Link(1e8, 20e-3)
    assert cluster.link_of(3, 0) == Link(1e8, 5e-3), "the last word on a pair counts, on top of [links]"


def test_the_least_description() -> None:
    cluster = Cluster.from_dict({"workers": TWO})
    assert cluster.rates == [DEFAULT_RATE] * 2
    assert cluster.mean(10**9) == 0.0, "without [links] the network is perfect"
    assert not Cluster.uniform(3).described


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[workers]]\ncount = 3\nspeed = 0.5\n[links]\nlatency = "1 ms"\n')
    assert Cluster.load(path).rates == [500.0] * 3
    with pytest.raises(UserError, match="none.toml"):
        Cluster.load(tmp_path / "none.toml")
    path.write_text("[[workers\n")
    with pytest.raises(UserError, match="c.toml"):
        Cluster.load(path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "at least one worker"),
        ({"workers": []}, "at least one worker"),
        ({"worker": TWO}, "unknown key 'worker'.*did you mean 'workers'"),
        ({"workers": [{"sped": 1.0}]}, r"\[\[workers\]\] number 1: unknown key 'sped'.*'speed'"),
        ({"workers": [{}, {"speed": 1, "examples_per_second": 2}]}, "number 2 has both speed and examples_per_second"),
        ({"workers": [{"speed": 0}]}, "number 1: its speed = 0 must be a number above zero"),
        ({"workers": [{"speed": -1}]}, "above zero"),
        ({"workers": [{"speed": "fast"}]}, "its speed = 'fast'"),
        ({"workers": [{"speed": True}]}, "its speed = True"),
        ({"workers": [{"speed": math.inf}]}, "above zero"),
        ({"workers": [{"speed": math.nan}]}, "above zero"),
        ({"workers": [{"examples_per_second": 0}]}, "its examples_per_second = 0"),
        ({"workers": TWO, "examples_per_second": "many"}, "examples_per_second = 'many'"),
        ({"workers": [{"count": 0}]}, "count = 0"),
        ({"workers": [{"count": 1.5}]}, "count = 1.5"),
        ({"workers": [{"count": True}]}, "count = True"),
        ({"workers": {"speed": 1}}, "double brackets"),
        ({"workers": 4}, "double brackets"),
        ({"workers": TWO, "links": 3}, r"\[links\]"),
        ({"workers": TWO, "links": {"bandwith": "1 Mbit"}}, r"\[links\]: unknown key 'bandwith'.*'bandwidth'"),
        ({"workers": TWO, "links": {"bandwidth": "0 Mbit"}}, "bandwidth must be above zero"),
        ({"workers": TWO, "links": {"bandwidth": 0}}, "bandwidth must be above zero"),
        ({"workers": TWO, "links": {"bandwidth": "-1 Mbit"}}, "bandwidth must be above zero"),
        ({"workers": TWO, "links": {"latency": "-1 ms"}}, "latency must be finite and not negative"),
        ({"workers": TWO, "links": {"latency": "1 Mbit"}}, "latency = '1 Mbit'"),
        ({"workers": TWO, "links": {"between": {"workers": [0, 1]}}}, "double brackets"),
        ({"workers": TWO, "links": {"between": [{"workers": [0, 2]}]}}, "worker 2 is not one of 0 to 1"),
        ({"workers": TWO, "links": {"between": [{"workers": [0]}]}}, r"give workers = \[a, b"),
        ({"workers": TWO, "links": {"between": [{}]}}, r"give workers = \[a, b"),
        ({"workers": TWO, "links": {"between": [{"groups": [0, 1]}]}}, r"give workers = \[a, b"),
        ({"workers": TWO, "links": {"between": [{"workers": 3}]}}, r"give workers = \[a, b"),
    ],
)
def test_invalid_entries_are_refused_by_name(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Cluster.from_dict(table)


# -- the time model -----------------------------------------------------------------------------------------------
def test_a_message_takes_latency_and_its_bits() -> None:
    assert Link(1e6 / PAYLOAD, 0.01).seconds(1000) == pytest.approx(0.01 + 8000 / 1e6)
    assert Link().seconds(10**12) == 0.0
    cluster = Cluster([100.0, 400.0], Link(1e6 / PAYLOAD, 0.01))
    assert cluster.compute(0, 50) == 0.5
    assert cluster.compute(1, 50) == 0.125
    assert cluster.message(1, 0, 1000) == pytest.approx(0.01 + 0.008)


@given(size=st.integers(1, 40), bytes=st.integers(0, 10**8))
def test_collectives_are_rings(size: int, bytes: int) -> None:
    cluster = Cluster([1.0] * size, Link(1e8 / PAYLOAD, 1e-3))
    hop = 1e-3 + 8 * bytes / size / 1e8
    assert cluster.mean(bytes) == pytest.approx(2 * (size - 1) * hop, rel=1e-12)
    assert cluster.gather(bytes) == pytest.approx((size - 1) * (1e-3 + 8 * bytes / 1e8), rel=1e-12)
    hops = math.ceil(math.log2(size))
    assert cluster.broadcast(0, bytes) == pytest.approx(hops * (1e-3 + 8 * bytes / 1e8), rel=1e-12)


def test_a_ring_is_as_slow_as_its_slowest_link() -> None:
    slow = Cluster([1.0] * 4, Link(1e8 / PAYLOAD, 1e-3), {(0, 3): Link(1e6 / PAYLOAD, 1e-3)})
    assert slow.mean(4000) == pytest.approx(6 * (1e-3 + 8000 / 1e6))
    across = Cluster([1.0] * 4, Link(1e8 / PAYLOAD, 1e-3), {(0, 2): Link(1e6 / PAYLOAD, 1e-3)})
    assert across.mean(4000) == pytest.approx(6 * (1e-3 + 8000 / 1e8)), "0 - 2 is no link of the ring"


@pytest.mark.parametrize("rates", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf]])
def test_rates_that_are_none(rates: list[float]) -> None:
    with pytest.raises(UserError):
        Cluster(rates)
