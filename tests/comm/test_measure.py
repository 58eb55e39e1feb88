"""Links as they are measured."""

from __future__ import annotations

import pytest

from equipoise.comm.measure_links import measure_links, summarised, tournament
from equipoise.launch.start import spawn
from equipoise.simulate.cluster import Link


@pytest.mark.parametrize("size", range(1, 10))
def test_everybody_meets_everybody_once_and_one_at_a_time(size: int) -> None:
    rounds = tournament(size)
    pairs = [pair for games in rounds for pair in games]
    assert sorted(pairs) == [(a, b) for a in range(size) for b in range(a + 1, size)]
    assert all(len({w for pair in games for w in pair}) == 2 * len(games) for games in rounds)


def test_links_of_processes_are_measured_alike_on_all() -> None:
    found = spawn(measure_links, 3, timeout=60.0)
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {(0, 1), (0, 2), (1, 2)}
    assert all(1e7 < link.bandwidth < 1e13 and 0 < link.latency < 1.0 for link in found[0].values())


def test_links_that_are_alike_become_one() -> None:
    usual, others = summarised({(0, 1): Link(1e9, 1e-3), (0, 2): Link(1.1e9, 1.1e-3), (1, 2): Link(1e7, 1e-3)})
    assert usual == Link(1e9, 1e-3)
    assert others == {(1, 2): Link(1e7, 1e-3)}
