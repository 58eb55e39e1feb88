"""Pictures of graphs."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from equipoise.topology import BaseK, Complete, Edges, Exponential, Matching, Ring, Star, Torus
from equipoise.topology.drawing import PANELS, links, places, svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "graph", [Ring(), Star(hub=1), Torus(), Exponential(), BaseK(), Matching(), Complete()], ids=str
)
def test_svg_shows_every_worker_in_every_panel(graph):
    for size in (1, 2, 6):
        bound = graph.on(size)
        root = ElementTree.fromstring(svg(bound))
        panels = root.findall(f"{SVG}g")
        assert len(panels) == min(bound.cycle or PANELS, PANELS), size
        for round, panel in enumerate(panels):
            assert len(panel.findall(f"{SVG}circle")) == size
            assert len(panel.findall(f"{SVG}path")) == len(links(bound, round)), size
        assert len(set(places(bound))) == size
        assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in places(bound)), size


def test_arrows_only_where_the_directions_differ():
    assert all(link.arrow for link in links(Exponential().on(8), 0) if abs(link.start - link.end) != 4)
    assert not any(link.arrow for link in links(Torus().on(16), 0))
    assert len(links(Torus().on(16), 0)) == 32
    assert sum(link.bend > 0 for link in links(Torus().on(16), 0)) == 8
    pair = Edges(links=[(0, 1), (1, 2), (2, 0), (1, 0)], directed=True).on(3)
    assert sum(link.arrow for link in links(pair, 0)) == 4  # the weights of 0-1 and 1-0 differ
