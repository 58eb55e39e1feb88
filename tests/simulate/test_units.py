"""Bandwidths, latencies and durations with their units."""

from __future__ import annotations

import math
from typing import Any

import pytest

from equipoise.core.errors import UserError
from equipoise.simulate.units import BITS, SECONDS, duration, quantity


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("8 bit", 8),
        ("1 kbit", 1e3),
        ("100 Mbit", 1e8),
        ("100Mbit", 1e8),
        (" 2.5 Gbit/s ", 2.5e9),
        ("10 GBIT", 1e10),
        ("3 B", 24),
        ("1 kB", 8e3),
        ("1.5 MB/s", 1.2e7),
        ("1 GB", 8e9),
        ("100 Mbps", 1e8),
        ("1 gbps", 1e9),
        ("1e2 Mbit", 1e8),
        ("0", 0.0),
    ],
)
def test_bandwidths(text: str, bits: float) -> None:
    assert quantity(text, BITS, "bandwidth") == bits


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250 us", 250e-6), ("1 ms", 1e-3), ("2s", 2.0), ("2 m", 120.0), ("2 min", 120.0), ("1.5 h", 5400.0), (0, 0.0)],
)
def test_latencies(text: Any, seconds: float) -> None:
    assert quantity(text, SECONDS, "latency") == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("text", ["100 Mb", "5 gb", "8 b", "1 kb"])
def test_bits_or_bytes_is_not_guessed(text: str) -> None:
    with pytest.raises(UserError, match="bits or bytes.*bit for bits.*B for bytes"):
        quantity(text, BITS, "bandwidth")


@pytest.mark.parametrize(
    "text", ["fast", "100 furlong", "Mbit", "1.2.3 Mbit", "", "1 2 Mbit", "nan Mbit", "100 Mbit per s"]
)
def test_an_unknown_unit_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UserError, match="bandwidth = .*write a number and one of bit, kbit, Mbit.*such as '100 Mbit'"):
        quantity(text, BITS, "bandwidth")


def test_a_number_without_a_unit_is_refused() -> None:
    with pytest.raises(UserError, match="latency = 3 has no unit: add one of us, ms, s"):
        quantity(3, SECONDS, "latency")


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90.0), (0.5, 0.5), ("90", 90.0), ("90 s", 90.0), ("10m", 600.0), ("1.5h", 5400.0)]
)
def test_durations(text: Any, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", [0, -1, "0", "-5 s", "soon", "1.2.3", math.nan, True, ""])
def test_durations_that_are_none(text: Any) -> None:
    with pytest.raises(UserError, match="budget"):
        duration(text, "budget")
