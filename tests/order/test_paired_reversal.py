from __future__ import annotations

from itertools import pairwise

import pytest

from equipoise.order import PairedReversal

from .drive import bound


@pytest.mark.parametrize("n", [1, 16, 50])
def test_blocks_stay_together_and_odd_epochs_run_backwards(n: int) -> None:
    order = bound(PairedReversal(block=8), n)
    for epoch in (0, 2, 4):
        forward = order.epoch(epoch).tolist()
        assert sorted(forward) == list(range(n))
        assert order.epoch(epoch + 1).tolist() == forward[::-1]
        blocks = [position // 8 for position in forward]
        assert sum(a != b for a, b in pairwise(blocks)) == len(set(blocks)) - 1
    if n > 8:
        assert order.epoch(0).tolist() != order.epoch(2).tolist()
