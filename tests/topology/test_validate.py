"""A user's own topology, valid and invalid."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equipoise.core.errors import UserError
from equipoise.core.method import option
from equipoise.topology import Static, Topology


@dataclass
class Own(Static):
    rows: list = option([], help="the rows of W without the diagonal")

    def edges(self, round, rank, size):
        return self.rows[rank]


@dataclass
class Alternating(Topology):
    """Pairs 0-1 and 2-3, then 1-2 and 3-0: connected over a period though in no round."""

    stuck: bool = option(False, help="always the same pairs")

    def edges(self, round, rank, size):
        odd = round % 2 and not self.stuck
        return [((rank + 1) % 4 if rank % 2 == odd else (rank - 1) % 4, 0.5)]

    def period_length(self, size):
        return 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[(1, 0.5)], [(2, 0.5)], [(1, 0.5)]], "moves the mean"),
        ([[(1, 0.5), (2, 0.2)], [(0, 0.5)], [(0, 0.1)]], "moves the mean"),
        ([[(1, 0.9), (2, 0.9)], [(0, 0.9)], [(0, 0.9)]], "worker 0 gives 1.8"),
        ([[(1, -0.5)], [(0, -0.5)], []], "must not be negative"),
        ([[(1, float("nan"))], [(0, 0.5)], []], "must not be negative"),
        ([[(3, 0.5)], [], []], "worker 0 lists peer 3"),
        ([[(0, 0.5)], [], []], "worker 0 lists peer 0"),
        ([[(1, 0.2), (1, 0.2)], [(0, 0.4)], []], "each once"),
        ([[(1, 0.5)], [(0, 0.5)], []], "not connected"),
        ([[(1, 0.3)], [(2, 0.3)], [(0, 0.3)]], "directed = True"),
    ],
)
def test_refused_with_the_fix(rows, words):
    with pytest.raises(UserError, match=words):
        Own(rows=rows).on(3).validate()


def test_connected_over_a_period():
    bound = Alternating().on(4)
    bound.validate()
    assert bound.spectral_gap() == pytest.approx(0.0)
    assert bound.contraction() == pytest.approx(0.0, abs=1e-15)
    assert bound.diameter() == 2
    with pytest.raises(UserError, match="not connected"):
        Alternating(stuck=True).on(4).validate()
    assert Alternating(stuck=True).on(4).rounds_to_contract() is None


def test_a_single_round_can_be_validated():
    Alternating().on(4).validate(round=1)


@dataclass
class OneWay(Static):
    """A directed ring, as a user declares it."""

    directed = True

    def edges(self, round, rank, size):
        return [((rank - 1) % size, 0.5)]


def test_a_declared_direction_is_used():
    bound = OneWay().on(3)
    bound.validate()
    assert not bound.symmetric
    assert bound.targets(0, 0) == [(1, 0.5)]


def test_abstract_ones_cannot_be_built():
    for cls in (Topology, Static):
        with pytest.raises(TypeError, match="abstract"):
            cls()
