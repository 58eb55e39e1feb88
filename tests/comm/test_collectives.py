"""sum, mean, weighted_mean, gather, broadcast, gather_objects and counter, on both kinds of workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.comm import barrier
from equipoise.comm.base import Stream
from equipoise.comm.process import _BLOCK
from equipoise.comm.shared_memory import _PIECE, LEAST
from equipoise.core.vector import digest

from .workers import both, in_rank_order, run, values

SIZES = (1, 2, 3, 4, 5)


def everything(comm: Any) -> dict[str, Any]:
    """Whole numbers, so that every order of summation is exact."""
    r, n = comm.rank, comm.size
    results: dict[str, Any] = {"rank": r, "size": n}
    for count in (1, 2, 7, 12):  # fewer than the workers, and not a multiple of them
        v = torch.arange(count, dtype=torch.float32) + 10 * r
        results[f"sum {count}"] = comm.sum(v).tolist()
        results[f"in place {count}"] = v.tolist()
        results[f"mean {count}"] = comm.mean(torch.full((count,), float(r))).tolist()
        results[f"gather {count}"] = comm.gather(torch.full((count,), r)).tolist()
        results[f"broadcast {count}"] = comm.broadcast(torch.full((count,), r), source=n - 1).tolist()
    results["2-d"] = comm.sum(torch.full((2, 3), r + 1)).tolist()
    results["0-d"] = comm.sum(torch.tensor(r + 1.0)).item()
    results["strided"] = comm.sum(torch.full((3, 2), r + 1.0).t()).tolist()
    part = torch.zeros(4, 2)
    comm.sum(part[:, 0].add_(1.0))
    results["column"] = part.tolist()
    results["empty"] = comm.sum(torch.empty(0)).tolist()
    message = torch.tensor([3.0 * r, 30.0 * r, float(r)])  # the vector (3, 30) with weight r
    results["weighted"] = comm.weighted_mean(message), message[:2].tolist()
    results["no weight"] = comm.weighted_mean(torch.zeros(3))
    results["objects"] = comm.gather_objects({"rank": r, "text": "x" * r})
    barrier(comm)
    results["counter"] = comm.counter("a", r + 1), comm.counter("b", 1)
    barrier(comm)
    results["counter in the end"] = comm.counter("a", 0)
    results["still there"] = comm.sum(torch.ones(1)).item()
    return results


@pytest.fixture(scope="module")
def ran() -> dict[tuple[int, bool], list[dict[str, Any]]]:
    return {(size, virtual): run(everything, size, virtual) for size in SIZES for virtual in (True, False)}


@both
@pytest.mark.parametrize("size", SIZES)
def test_every_collective_is_right(ran: Any, size: int, virtual: bool) -> None:
    ranks = range(size)
    total = sum(ranks)
    for r, results in enumerate(ran[size, virtual]):
        assert (results["rank"], results["size"]) == (r, size)
        for count in (1, 2, 7, 12):
            assert results[f"sum {count}"] == [size * i + 10 * total for i in range(count)]
            assert results[f"in place {count}"] == results[f"sum {count}"]
            assert results[f"mean {count}"] == [total / size] * count
            assert results[f"gather {count}"] == [[s] * count for s in ranks]
            assert results[f"broadcast {count}"] == [size - 1] * count
        assert results["2-d"] == [[total + size] * 3] * 2
        assert results["0-d"] == total + size
        assert results["strided"] == [[float(total + size)] * 3] * 2
        assert results["column"] == [[float(size), 0.0]] * 4
        assert results["empty"] == []
        weight, mean = results["weighted"]
        assert weight == total
        assert mean == ([3.0, 30.0] if total else [0.0, 0.0])
        assert results["no weight"] == 0
        assert results["objects"] == [{"rank": s, "text": "x" * s} for s in ranks]
        assert results["counter in the end"] == total + size
        assert results["still there"] == size


@both
@pytest.mark.parametrize("size", SIZES)
def test_a_counter_gives_every_value_once(ran: Any, size: int, virtual: bool) -> None:
    assert sorted(results["counter"][1] for results in ran[size, virtual]) == list(range(1, size + 1))
    after = [results["counter"][0] for results in ran[size, virtual]]
    assert max(after) == size * (size + 1) // 2
    assert len(set(after)) == size


@both
def test_a_counter_loses_nothing_when_all_ask_at_once(virtual: bool) -> None:
    ran = run(lambda comm: [comm.counter("many", 2) for _ in range(50)], 4, virtual)
    assert sorted(value for results in ran for value in results) == list(range(2, 402, 2))
    assert all(results == sorted(results) for results in ran)


# -- the deterministic sum ----------------------------------------------------------------------------------------
LENGTHS = (1, 2, 3, 5, 101, LEAST // 4 - 1, LEAST // 4 + 1, _BLOCK + 7)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def sums(comm: Any) -> list[str]:
    results = [comm.sum(values(comm.rank, count)) for count in LENGTHS]
    results += [comm.mean(values(comm.rank, 1001, dtype)) for dtype in DTYPES]
    message = values(comm.rank, 1001).mul_(comm.rank + 0.3)
    message[-1] = comm.rank + 0.3
    comm.weighted_mean(message)
    return [digest(t) for t in (*results, message)]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_processes_sum_in_rank_order_bit_for_bit_as_virtual_workers(size: int) -> None:
    """Below and above the size from which shared memory carries it, and above the block of the one on gloo."""
    virtual = run(sums, size, True)
    processes = run(sums, size, False, deterministic=True)
    for i, count in enumerate(LENGTHS):
        assert virtual[0][i] == digest(in_rank_order([values(r, count) for r in range(size)])), count
    for i, dtype in enumerate(DTYPES, len(LENGTHS)):
        assert virtual[0][i] == digest(in_rank_order([values(r, 1001, dtype) for r in range(size)]) / size), dtype
    assert virtual == [virtual[0]] * size
    assert processes == virtual


def test_rank_order_is_what_these_numbers_need() -> None:
    """The values above tell a rank-order sum from others; else the test before would show nothing."""
    parts = [values(r, 1001) for r in range(4)]
    assert not torch.equal(in_rank_order(parts), in_rank_order(parts[::-1]))
    assert not torch.equal(in_rank_order(parts), (parts[0] + parts[1]) + (parts[2] + parts[3]))


def test_without_shared_memory_the_deterministic_sum_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_SHARED_MEMORY", "0")
    processes = run(sums, 3, False, deterministic=True)
    for i, count in enumerate(LENGTHS):
        assert processes[1][i] == digest(in_rank_order([values(r, count) for r in range(3)])), count


def test_the_usual_sum_is_right_to_rounding() -> None:
    """n - 1 additions, each with a relative error of at most eps / 2 of a partial sum below the sum of magnitudes."""

    def usual(comm: Any) -> torch.Tensor:
        return comm.sum(values(comm.rank, 1001))

    exact = sum(values(r, 1001).double() for r in range(4))
    bound = 3 * torch.finfo(torch.float32).eps / 2 * sum(values(r, 1001).double().abs() for r in range(4))
    for results in run(usual, 4, False):
        assert ((results.double() - exact).abs() <= bound).all()


def test_sums_of_changing_length_do_not_disturb_each_other() -> None:
    """Workers leave a sum at different times: who is early must not overwrite what another has still to read."""

    def many(comm: Any) -> int:
        wrong = 0
        for turn in range(40):
            for count in (LEAST // 4 + 5, 200_001, 33_333):
                v = torch.full((count,), float(comm.rank + turn))
                comm.sum(v)
                wrong += int((v != 6.0 + 4 * turn).sum())
        return wrong

    assert run(many, 4, False) == [0, 0, 0, 0]


# -- what callers may rely on -------------------------------------------------------------------------------------
@both
def test_gathered_values_belong_to_the_caller(virtual: bool) -> None:
    """What one worker does to a value it gave or received is not seen by another."""

    def work(comm: Any) -> Any:
        mine = [comm.rank]
        tensor = torch.full((2,), float(comm.rank))
        objects, stacked = comm.gather_objects(mine), comm.gather(tensor)
        mine.append(99)
        tensor.fill_(99.0)
        objects[0].append(77)
        stacked[0] = 77.0
        barrier(comm)
        again = comm.gather_objects([comm.rank]), comm.gather(torch.full((2,), float(comm.rank)))
        return objects, stacked.tolist(), again[0], again[1].tolist()

    for results in run(work, 2, virtual):
        assert results == ([[0, 77], [1]], [[77.0, 77.0], [1.0, 1.0]], [[0], [1]], [[0.0, 0.0], [1.0, 1.0]])


@both
def test_results_come_back_by_rank_whatever_they_are(virtual: bool) -> None:
    def work(comm: Any) -> Any:
        big = torch.full((300_000,), float(comm.rank))
        return {"tensor": big, "array": big.numpy()[:3], "none": None, "text": "é" * comm.rank}

    for r, results in enumerate(run(work, 3, virtual)):
        assert torch.equal(results["tensor"], torch.full((300_000,), float(r)))
        assert results["array"].tolist() == [r, r, r]
        assert results["text"] == "é" * r


@both
def test_no_gradient_flows_through_communication(virtual: bool) -> None:
    def work(comm: Any) -> Any:
        p = torch.nn.Parameter(torch.ones(2))
        gathered = comm.gather(p)
        comm.broadcast(p.data)
        return gathered.requires_grad, comm.gather(p * 2).requires_grad

    assert run(work, 2, virtual) == [(False, False)] * 2


def test_processes_after_the_parent_has_used_its_threads() -> None:
    """OpenMP's threads do not survive a fork: children must not wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(500, 500) @ torch.randn(500, 500)

        def work(comm: Any) -> float:
            big = torch.randn(400, 400)
            return comm.sum((big @ big).sum() * 0.0 + 1.0).item()

        assert run(work, 3, False) == [3.0, 3.0, 3.0]
    finally:
        torch.set_num_threads(before)


def test_many_launches_in_a_row() -> None:
    """Workers that leave at once must not take unread messages of others with them."""
    for _ in range(6):
        assert run(lambda comm: comm.sum(torch.ones(2)).tolist(), 4, False) == [[4.0, 4.0]] * 4


@both
@pytest.mark.parametrize("count", [1, 37, LEAST // 4 + 5, _PIECE + 17])
@pytest.mark.parametrize("size", [1, 3])
def test_a_stream_is_summed_as_a_vector_and_its_end_is_taken_first(size: int, count: int, virtual: bool) -> None:
    def work(comm: Any) -> tuple[bool, list[tuple[int, int]], int, int]:
        mine, results, seen = values(comm.rank, count), torch.zeros(count), []

        def fill(start: int, out: torch.Tensor) -> None:
            out.copy_(mine[start : start + len(out)])

        def take(start: int, total: torch.Tensor) -> None:
            results[start : start + len(total)] = total
            seen.append((start, start + len(total)))

        comm.sum_stream(Stream(count, torch.float32, mine.device, fill, take))
        sent = comm.ledger.bytes
        right = torch.equal(results, in_rank_order([values(r, count) for r in range(size)]))
        comm.sum(mine)
        return right, seen, sent, comm.ledger.bytes - sent

    for right, seen, sent, as_vector in run(work, size, virtual, deterministic=True):
        assert right
        assert [stop for _, stop in seen] == [count, *(start for start, _ in seen[:-1])]
        assert seen[-1][0] == 0
        assert sent == as_vector
