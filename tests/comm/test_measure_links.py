"""Links between running workers: which pairs are measured when, and what is reported."""

from __future__ import annotations

import pytest

from equipoise.comm import measure_links as module
from equipoise.comm.measure_links import measure_links, round_robin_pairs, summarised
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
    assert all(1e7 < link.bandwidth < 1e13 and 0 < link.latency < 1.0 for link in links[0].values())


def test_similar_links_become_the_default() -> None:
    default, others = summarised({(0, 1): Link(1e9, 1e-3), (0, 2): Link(1.1e9, 1.1e-3), (1, 2): Link(1e7, 1e-3)})
    assert default == Link(1e9, 1e-3)
    assert others == {(1, 2): Link(1e7, 1e-3)}
