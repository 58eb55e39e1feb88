"""What is counted, by formulas written out here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.comm.ledger import Ledger, broadcast_cost, gather_cost, mean_cost

from .workers import both, run


@given(elements=st.integers(0, 1000), size=st.integers(1, 20), itemsize=st.sampled_from([2, 4, 8]))
def test_a_mean_moves_twice_all_but_one_vector(elements: int, size: int, itemsize: int) -> None:
    """Reduce-scatter and all-gather: each of the N chunks travels N - 1 times in each of the two."""
    costs = [mean_cost(elements, itemsize, rank, size) for rank in range(size)]
    assert sum(b for _, b in costs) == 2 * (size - 1) * elements * itemsize
    assert [m for m, _ in costs] == [2 * (size - 1)] * size
    for rank, (_, sent) in enumerate(costs):
        chunk = len(range(rank, elements, size))
        assert sent == ((elements - chunk) + chunk * (size - 1)) * itemsize


@given(elements=st.integers(0, 1000), size=st.integers(1, 20), source=st.integers(0, 19))
def test_a_gather_and_a_broadcast(elements: int, size: int, source: int) -> None:
    assert gather_cost(elements, 4, size) == (size - 1, 4 * elements * (size - 1))
    source %= size
    costs = [broadcast_cost(elements, 4, rank, source, size) for rank in range(size)]
    assert sum(m for m, _ in costs) == size - 1
    assert sum(b for _, b in costs) == 4 * elements * (size - 1)
    assert costs[source] == (size - 1, 4 * elements * (size - 1))


def counted(comm: Any) -> dict[str, tuple[int, int]]:
    counts = {}

    def measure(name: str, call: Any) -> None:
        before = comm.ledger.messages, comm.ledger.bytes
        call()
        counts[name] = comm.ledger.messages - before[0], comm.ledger.bytes - before[1]

    n, r = comm.size, comm.rank
    measure("sum", lambda: comm.sum(torch.ones(10)))
    measure("mean", lambda: comm.mean(torch.ones(10, dtype=torch.float64)))
    measure("weighted", lambda: comm.weighted_mean(torch.ones(10)))
    measure("half", lambda: comm.sum(torch.ones(10, dtype=torch.bfloat16)))
    measure("gather", lambda: comm.gather(torch.ones(2, 3)))
    measure("broadcast", lambda: comm.broadcast(torch.ones(5), source=n - 1))
    if n > 1:
        got = torch.empty(7)
        measure("exchange", lambda: comm.exchange({(r + 1) % n: torch.ones(7)}, {(r - 1) % n: got}).wait())
    measure("objects", lambda: comm.gather_objects("x" * 1000))
    measure("counter", lambda: comm.counter("c", 1))
    with comm.uncounted():
        measure("uncounted", lambda: comm.sum(torch.ones(10)))
        with comm.uncounted():
            pass
        measure("still uncounted", lambda: comm.sum(torch.ones(10)))
    measure("counted again", lambda: comm.sum(torch.ones(10)))
    return counts


@both
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_ledger_of_each_worker(size: int, virtual: bool) -> None:
    # 10 elements over 3 workers are chunks of 4, 3, 3; over 4 workers 3, 3, 2, 2.
    chunks = {1: [10], 2: [5, 5], 3: [4, 3, 3], 4: [3, 3, 2, 2]}[size]
    for rank, counts in enumerate(run(counted, size, virtual)):
        elements = (10 - chunks[rank]) + chunks[rank] * (size - 1) if size > 1 else 0
        mean = 2 * (size - 1), 4 * elements
        assert counts["sum"] == counts["weighted"] == counts["counted again"] == mean
        assert counts["mean"] == (mean[0], 8 * elements)
        assert counts["half"] == (mean[0], 2 * elements)
        assert counts["gather"] == (size - 1, 24 * (size - 1))
        assert counts["broadcast"] == ((size - 1, 20 * (size - 1)) if rank == size - 1 else (0, 0))
        assert counts["objects"] == counts["counter"] == counts["uncounted"] == counts["still uncounted"] == (0, 0)
        if size > 1:
            assert counts["exchange"] == (1, 28)


def test_counting_goes_on_after_an_error_inside_uncounted() -> None:
    def work(comm: Any) -> int:
        with pytest.raises(KeyError), comm.uncounted():
            raise KeyError
        comm.gather(torch.ones(1))
        return comm.ledger.bytes

    assert run(work, 2, True) == [4, 4]


def test_a_ledger_round_trip() -> None:
    ledger = Ledger()
    ledger.record(2, 30)
    other = Ledger()
    other.load_state_dict(ledger.state_dict())
    other.record(1, 1)
    assert (other.messages, other.bytes, other.counting) == (3, 31, True)
    seconds = {"compute": 0.0, "wait": 0.0, "communicate": 0.0, "unattributed": 0.0, "alive": 0.0}
    assert ledger.state_dict() == {"messages": 2, "bytes": 30, "failures": 0, **seconds}
