"""Links between running workers: which pairs are measured when, and what is reported."""

from __future__ import annotations

import math

import pytest

from equipoise.comm import measure_links as module
from equipoise.comm.base import Comm
from equipoise.comm.measure_links import MeasuredLink, Sample, measure_links, median_link, round_robin_pairs, summarised
from equipoise.launch.start import spawn
from equipoise.simulate.cluster import Link


@pytest.mark.parametrize("size", range(1, 10))
def test_every_pair_is_measured_once_in_rounds_of_disjoint_pairs(size: int) -> None:
    rounds = round_robin_pairs(size)
    assert sorted(pair for pairs in rounds for pair in pairs) == [
        (a, b) for a in range(size) for b in range(a + 1, size)
    ]
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)


def test_all_workers_report_the_same_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", 0.02)
    links = spawn(measure_links, 3, timeout=60.0)
    assert links[0] == links[1] == links[2]
    assert set(links[0]) == {(0, 1), (0, 2), (1, 2)}
    assert all(1e7 < link.bandwidth < 1e13 and 0 < link.latency < 1.0 for link, _ in links[0].values())


def test_the_median_of_repetitions_between_which_all_other_pairs_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that is busy for a while: two of five repetitions of every pair are slow."""
    turns: list[tuple[int, int]] = []
    bandwidths = [1e9, 1e8, 9e8, 2e8, 1.1e9]

    def measured(comm: Comm, peer: int, bytes: int) -> Sample:
        turns.append((comm.rank, peer))
        return Sample(bandwidths[turns.count((comm.rank, peer)) - 1], 1e-3)

    monkeypatch.setattr(module, "_enough_bytes", lambda comm, peer: 1)
    monkeypatch.setattr(module, "_measure", measured)
    links = spawn(lambda comm: measure_links(comm, 5), 4, virtual=True)[0]
    assert set(links.values()) == {MeasuredLink(Link(9e8, 1e-3), (1e9 - 2e8) / 9e8)}
    assert len(turns) == 12 * 5
    assert len(set(turns[:12])) == 12


def test_a_message_that_takes_no_time_gives_no_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_time_exchange", lambda comm, peer, elements: 1e-3)
    monkeypatch.setattr(module, "_MOST", 1 << 16)
    (link,) = spawn(measure_links, 2, virtual=True)[0].values()
    assert link == MeasuredLink(Link(math.inf, 1e-3), math.inf)


def test_one_message_of_many_that_took_no_time_says_nothing() -> None:
    samples = [Sample(bandwidth, 1e-3) for bandwidth in (1e9, 1.1e9, 0.9e9, 1e9, 1.2e9, 1e9)]
    assert median_link([*samples, Sample(math.inf, 1e-3)]).link == Link(1e9, 1e-3)
    assert median_link([*samples, Sample(math.inf, 1e-3)]).spread < 0.2
    assert median_link([*samples[1:], *[Sample(math.inf, 1e-3)] * 2]).spread == math.inf


def test_a_message_that_had_to_wait_is_not_taken_for_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a byte per nanosecond 0.2 s are 268 MB; the first message of each worker waits for a second."""
    seen: list[int] = []

    def timed(comm: Comm, peer: int, elements: int) -> float:
        seen.append(comm.rank)
        return 4e-9 * elements + (seen.count(comm.rank) == 1)

    monkeypatch.setattr(module, "_time_exchange", timed)
    monkeypatch.setattr(module, "_MOST", 1 << 30)
    assert spawn(lambda comm: module._enough_bytes(comm, 1 - comm.rank), 2, virtual=True) == [1 << 28] * 2


def test_latencies_that_make_no_difference_have_no_spread() -> None:
    assert median_link([Sample(1e9, latency) for latency in (1e-6, 3e-6, 9e-6)]).spread < 0.1
    assert median_link([Sample(1e9, latency) for latency in (1e-3, 3e-3, 9e-3)]).spread > 1.0


def test_similar_links_become_the_default() -> None:
    default, others = summarised({(0, 1): Link(1e9, 1e-3), (0, 2): Link(1.1e9, 1.1e-3), (1, 2): Link(1e7, 1e-3)})
    assert default == Link(1e9, 1e-3)
    assert others == {(1, 2): Link(1e7, 1e-3)}
