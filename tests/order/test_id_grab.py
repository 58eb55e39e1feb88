"""ID-GraB: every worker balances by itself."""

from __future__ import annotations

from typing import Any

import pytest

import equipoise as eq
from equipoise.order import GraB, IDGraB, PairBalance

from .drive import bound, parallel_floor, sphere, visit


@pytest.mark.parametrize(("balance", "same"), [("pair", PairBalance), ("mean", GraB)])
def test_each_worker_runs_the_method_by_itself_and_sends_nothing(balance: str, same: type) -> None:
    def loop(comm: Any) -> tuple[list[int], list[int], int]:
        orders = bound(IDGraB(signal="exact", balance=balance), 20, comm), bound(same(signal="exact"), 20, comm)
        for order in orders:
            for epoch in range(3):
                visit(order, sphere(20, 4, seed=comm.rank), epoch, 4)
        return orders[0].epoch(3).tolist(), orders[1].epoch(3).tolist(), comm.ledger.bytes

    for order, expected, sent in eq.spawn(loop, 3, virtual=True):
        assert order == expected
        assert sent == 0


def test_mean_has_the_lower_floor_and_both_grow_with_workers() -> None:
    """The authors' simulation: Bal 0.7 of PairBal, both like the root of the number of workers."""
    vectors = sphere(1024, 16)
    pair = {w: parallel_floor(lambda: IDGraB(signal="exact"), vectors, w, 11, 64 // w) for w in (1, 8)}
    mean = {w: parallel_floor(lambda: IDGraB(signal="exact", balance="mean"), vectors, w, 11, 64 // w) for w in (1, 8)}
    assert pair[8] / pair[1] == pytest.approx(8**0.5, rel=0.35)
    assert mean[8] / mean[1] == pytest.approx(8**0.5, rel=0.35)
    assert 0.5 < mean[1] / pair[1] < 0.9
