"""Positions in the data: every example once per epoch, all workers in step, saved and dealt out again."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from equipoise.batch import Fixed
from equipoise.comm.virtual import VirtualComm, World
from equipoise.core.context import Context, WorkerInfo
from equipoise.core.errors import CheckpointError, UserError
from equipoise.launch.start import spawn
from equipoise.loop.position import Position
from equipoise.loop.sampler import Sampler
from equipoise.loop.segment import ConstantBatchSegment
from equipoise.order import FlipFlop, Reshuffle, Sequential, ShuffleOnce
from equipoise.partition import Contiguous, FromFile

from ..comm.workers import both

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)


class Spread(Fixed):
    @property
    def spreads(self) -> bool:
        return True


def positions(
    blocks: list[int],
    batch: int | list[int],
    drop_last: bool = False,
    order: Any = None,
    seed: int = 0,
    rule: type[Fixed] = Fixed,
) -> list[Position]:
    """The position of every worker; worker w's examples are numbered from 1000 w."""
    world = World(len(blocks))
    indices = [np.arange(n) + 1000 * w for w, n in enumerate(blocks)]
    made = []
    for rank, block in enumerate(indices):
        worker = WorkerInfo(rank, len(world.workers), seed, len(block))
        context = Context(VirtualComm(world, world.workers[rank]), worker=worker)
        bound = (order or Reshuffle()).bind(context), rule(batch).bind(context)
        made.append(Position(context, list(indices), *bound, drop_last))
    return made


def epoch(workers: list[Position]) -> list[list[np.ndarray]]:
    """What each worker takes to the end of the epoch, while all agree how far it is."""
    taken: list[list[np.ndarray]] = [[] for _ in workers]
    while True:
        left = {w.steps_left for w in workers}
        assert len(left) == 1, "workers disagree where the epoch ends"
        if left == {0}:
            return taken
        for mine, worker in zip(taken, workers, strict=True):
            indices, places = worker.take()
            if worker.positions is not None:
                assert np.array_equal(worker.block[places], indices)
            mine.append(indices)
        assert {w.steps_left for w in workers} == {left.pop() - 1}, "a step is one step"


def seen(taken: list[list[np.ndarray]]) -> list[int]:
    return sorted(int(i) for mine in taken for part in mine for i in part)


# -- one epoch ----------------------------------------------------------------------------------------------------
@given(blocks=sizes, data=st.data())
def test_every_example_once_and_nobody_dry_before_the_end(blocks: list[int], data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 12), min_size=len(blocks), max_size=len(blocks)))
    workers = positions(blocks, batch)
    steps = max(-(-n // b) for n, b in zip(blocks, batch, strict=True))
    assert workers[0].steps_left == steps
    for number in range(2):
        taken = epoch(workers)
        assert seen(taken) == [1000 * w + i for w, n in enumerate(blocks) for i in range(n)]
        for mine, n, b in zip(taken, blocks, batch, strict=True):
            assert len(mine) == steps
            counts = [len(part) for part in mine]
            assert max(counts) <= b
            if len(set(batch)) == 1 and max(blocks) - min(blocks) > 1:
                assert max(counts) - min(counts) <= 1, "batches follow the blocks"
            if n >= steps:
                assert min(counts) >= 1, "a worker with enough examples always has one"
            else:
                assert counts == [1] * n + [0] * (steps - n)
        assert all(w.consumed == (number + 1) * sum(blocks) for w in workers)
        for w in workers:
            w.begin(number + 1)


@given(blocks=sizes, data=st.data())
def test_drop_last_takes_full_batches_or_follows_the_blocks(blocks: list[int], data: st.DataObject) -> None:
    """Full batches where everyone has a size of its own; of one size for all, what the largest block needs."""
    one = data.draw(st.booleans())
    batch = data.draw(st.lists(st.integers(1, 12), min_size=len(blocks), max_size=len(blocks)))
    batch = [batch[0]] * len(blocks) if one else batch
    same = len(set(batch)) == 1
    steps = (max if same else min)(n // b for n, b in zip(blocks, batch, strict=True))
    if steps == 0:
        with pytest.raises(UserError, match="drop_last leaves no batch"):
            positions(blocks, batch, drop_last=True)
        return
    taken = epoch(positions(blocks, batch, drop_last=True))
    assert max(Counter(seen(taken)).values()) == 1
    for mine, n, b in zip(taken, blocks, batch, strict=True):
        counts = [len(p) for p in mine]
        if n // b >= steps:
            assert counts == [b] * steps
        else:
            assert sum(counts) == n
            assert max(counts) - min(counts) <= 1


def test_equal_blocks_are_taken_as_anybody_would() -> None:
    """Full batches first, the rest at the end, in the order of the epoch."""
    [worker] = positions([10], 4, order=Sequential())
    assert [part.tolist() for part in epoch([worker])[0]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_unequal_blocks_by_hand() -> None:
    """Worker 1 needs three steps; one size for all follows the blocks, a size of its own keeps one example for each."""
    taken = epoch(positions([7, 9], 3, order=Sequential()))
    assert [len(p) for p in taken[0]] == [3, 2, 2]
    taken = epoch(positions([6, 11], 3, order=Sequential()))
    assert [[len(p) for p in mine] for mine in taken] == [[2, 2, 1, 1], [3, 3, 3, 2]]
    taken = epoch(positions([7, 9], [4, 3], order=Sequential()))
    assert [p.tolist() for p in taken[0]] == [[0, 1, 2, 3], [4, 5], [6]]
    assert [p.tolist() for p in taken[1]] == [[1000, 1001, 1002], [1003, 1004, 1005], [1006, 1007, 1008]]


@given(blocks=sizes, data=st.data())
def test_spread_batches_differ_by_one_and_end_together(blocks: list[int], data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 12), min_size=len(blocks), max_size=len(blocks)))
    taken = epoch(positions(blocks, batch, rule=Spread))
    assert seen(taken) == [1000 * w + i for w, n in enumerate(blocks) for i in range(n)]
    for mine, b in zip(taken, batch, strict=True):
        counts = [len(part) for part in mine]
        assert max(counts) <= b
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


@given(
    left=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    data=st.data(),
    done=st.integers(0, 40),
    spread=st.booleans(),
    drop_last=st.booleans(),
)
def test_a_stretch_begun_anew_goes_on_alike(
    left: list[int], data: st.DataObject, done: int, spread: bool, drop_last: bool
) -> None:
    """A checkpoint keeps what was taken, not the segment: s steps and then t are s + t of them."""
    batch = np.array(data.draw(st.lists(st.integers(1, 12), min_size=len(left), max_size=len(left))))
    whole = ConstantBatchSegment(np.array(left), batch, 0, drop_last, spread)
    whole.done = min(done, whole.steps)
    first = whole.taken()
    rest = ConstantBatchSegment(np.array(left) - first, batch, 0, drop_last, spread)
    assert rest.steps == whole.steps - whole.done
    for _ in range(rest.steps):
        whole.done += 1
        rest.done += 1
        assert np.array_equal(whole.taken(), first + rest.taken())
        assert whole.total(whole.done) == whole.taken().sum()
        assert whole.mine(whole.done) == whole.taken()[0]


# -- saved and loaded ---------------------------------------------------------------------------------------------
@given(blocks=sizes, batch=st.integers(1, 9), stop=st.integers(0, 30))
def test_a_position_goes_on_where_it_was(blocks: list[int], batch: int, stop: int) -> None:
    whole, broken = positions(blocks, batch), positions(blocks, batch)
    rest: list[Any] = []
    for workers in (whole, broken):
        for _ in range(min(stop, workers[0].steps_left)):
            for w in workers:
                w.take()
    states = [copy.deepcopy(w.state_dict()) for w in broken]
    fresh = positions(blocks, batch)
    for w, state in zip(fresh, states, strict=True):
        w.load_state_dict(state)
    for workers in (whole, fresh):
        rest.append([[p.tolist() for p in mine] for mine in epoch(workers)])
    assert rest[0] == rest[1]
    assert [w.consumed for w in fresh] == [w.consumed for w in whole]
    for w in (*whole, *fresh):
        w.begin(1)
    assert [w.sequence.tolist() for w in whole] == [w.sequence.tolist() for w in fresh]


def test_a_state_is_a_copy() -> None:
    [worker] = positions([6], 2)
    state = worker.state_dict()
    worker.take()
    assert state["taken"] == [0]
    worker.load_state_dict(state)
    worker.take()
    assert state["taken"] == [0]


def test_another_partition_is_refused() -> None:
    one, other = positions([5, 5], 2), positions([6, 4], 2)
    with pytest.raises(CheckpointError, match="partition differs"):
        other[0].load_state_dict(one[0].state_dict())


# -- dealt out to another number of workers -----------------------------------------------------------------------
@given(blocks=sizes, batch=st.integers(1, 9), stop=st.integers(0, 20), workers=st.integers(1, 7))
def test_what_is_left_is_dealt_out_once(blocks: list[int], batch: int, stop: int, workers: int) -> None:
    old = positions(blocks, batch)
    done: list[int] = []
    for _ in range(min(stop, old[0].steps_left)):
        for w in old:
            done += w.take()[0].tolist()
    everything = [1000 * w + i for w, n in enumerate(blocks) for i in range(n)]
    states = [w.state_dict() for w in old]
    new = (
        positions([len(part) for part in np.array_split(everything, workers)], batch)
        if len(everything) >= workers
        else []
    )
    for w in new:
        w.redistribute(states)
    if not new:
        return
    assert all(abs(len(a.sequence) - len(b.sequence)) <= 1 for a in new for b in new)
    assert all(w.consumed == old[0].consumed for w in new)
    assert all(w.part_done == pytest.approx(len(done) / len(everything)) for w in new)
    assert sorted(done + seen(epoch(new))) == sorted(everything)
    assert all(w.part_done == 1.0 for w in new)
    for w in new:
        w.begin(1)
    assert all(w.part_done == 0.0 for w in new)
    assert seen(epoch(new)) == sorted(i for w in new for i in w.block.tolist()), "the next epoch is an ordinary one"


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def test_dealt_examples_can_be_saved_and_dealt_again() -> None:
    """4 workers, then 3, then 2, all in one epoch."""
    workers, done = positions([10, 10, 10, 10], 2), []
    for size in (3, 2):
        for _ in range(2):
            for w in workers:
                done += w.take()[0].tolist()
        states = [copy.deepcopy(w.state_dict()) for w in workers]
        again = positions([len(w.block) for w in workers], 2)
        for w, state in zip(again, states, strict=True):
            w.load_state_dict(state)
            assert plain(w.state_dict()) == plain(state)
        workers = positions([40 // size] * size, 2)
        for w in workers:
            w.redistribute(states)
    assert workers[0].part_done == pytest.approx(len(done) / 40)
    assert sorted(done + seen(epoch(workers))) == [1000 * w + i for w in range(4) for i in range(10)]


# -- in a user's own DataLoader -----------------------------------------------------------------------------------
DATA = TensorDataset(torch.arange(23), torch.arange(23) % 3)


def batches(loader: Any, at_most: int | None = None) -> list[list[int]]:
    found = []
    for x, _ in loader:
        found.append(x.tolist())
        if len(found) == at_most:
            break
    return found


def test_a_sampler_alone_is_a_batch_sampler() -> None:
    sampler = Sampler(DATA, batch=5, seed=1)
    loader = DataLoader(DATA, batch_sampler=sampler)
    assert len(loader) == len(sampler) == 5
    first, second = batches(loader), batches(loader)
    for found in (first, second):
        assert [len(b) for b in found] == [5, 5, 5, 5, 3]
        assert sorted(i for b in found for i in b) == list(range(23))
    assert first != second, "each epoch is shuffled anew"
    assert batches(DataLoader(DATA, batch_sampler=Sampler(DATA, batch=5, seed=1))) == first
    assert batches(DataLoader(DATA, batch_sampler=Sampler(DATA, batch=5, seed=2))) != first


def test_drop_last_in_a_loader() -> None:
    loader = DataLoader(DATA, batch_sampler=Sampler(DATA, batch=5, drop_last=True))
    for _ in range(2):
        found = batches(loader)
        assert [len(b) for b in found] == [5] * 4
        assert len({i for b in found for i in b}) == 20


@pytest.mark.parametrize("order", [Reshuffle(), Sequential(), ShuffleOnce(), FlipFlop()])
@pytest.mark.parametrize("processes", [0, 2])
def test_a_loop_resumes_in_the_middle_of_an_epoch(processes: int, order: Any) -> None:
    """Batches that a loader has drawn ahead of the loop are not lost."""

    def loader(sampler: Sampler) -> DataLoader:
        return DataLoader(
            DATA, batch_sampler=sampler, num_workers=processes, multiprocessing_context="fork" if processes else None
        )

    whole = Sampler(DATA, batch=4, order=order)
    expected = batches(loader(whole)) + batches(loader(whole)) + batches(loader(whole))
    sampler = Sampler(DATA, batch=4, order=order)
    assert batches(loader(sampler)) == expected[:6]
    assert batches(loader(sampler), at_most=2) == expected[6:8]
    state = copy.deepcopy(sampler.state_dict(finished=2))
    again = Sampler(DATA, batch=4, order=order)
    again.load_state_dict(state)
    assert len(again) == 4
    assert batches(loader(again), at_most=1) == expected[8:9]
    state = again.state_dict(finished=1)
    third = Sampler(DATA, batch=4, order=order)
    third.load_state_dict(state)
    assert batches(loader(third)) + batches(loader(third)) == expected[9:]


def test_without_loader_processes_finished_need_not_be_said() -> None:
    sampler, whole = Sampler(DATA, batch=4), Sampler(DATA, batch=4)
    expected = list(whole)
    drawn = iter(sampler)
    assert [next(drawn), next(drawn)] == expected[:2]
    again = Sampler(DATA, batch=4)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == expected[2:]


def test_the_end_of_an_epoch_is_a_position_too() -> None:
    whole = Sampler(DATA, batch=4)
    first, second = list(whole), list(whole)
    sampler = Sampler(DATA, batch=4)
    assert list(sampler) == first
    again = Sampler(DATA, batch=4)
    again.load_state_dict(sampler.state_dict(finished=6))
    assert len(again) == 6
    assert list(again) == second
    assert again.epoch == 1


def test_finished_is_counted_from_where_iterating_began() -> None:
    sampler = Sampler(DATA, batch=4)
    assert sampler.state_dict(finished=0)["position"]["taken"] == [0]
    with pytest.raises(UserError, match="finished=1 but only 0 batches"):
        sampler.state_dict(finished=1)
    drawn = iter(sampler)
    for _ in range(3):
        next(drawn)
    assert sampler.state_dict(finished=2)["position"]["taken"] == [8]
    with pytest.raises(UserError, match="finished=4 but only 3 batches"):
        sampler.state_dict(finished=4)
    with pytest.raises(UserError):
        sampler.state_dict(finished=-1)
    sampler.load_state_dict(sampler.state_dict(finished=1))
    assert sampler.state_dict(finished=0)["position"]["taken"] == [4], "what was drawn before a load counts no more"


@both
def test_samplers_of_several_workers_keep_in_step(virtual: bool) -> None:
    def work(comm: Any) -> list[list[int]]:
        sampler = Sampler(DATA, partition=Contiguous(), batch=Fixed([2, 3, 8]))
        assert len(sampler) == 4
        return [batch for _ in range(2) for batch in sampler]

    ran = spawn(work, 3, virtual=virtual, timeout=30.0)
    assert [len(found) for found in ran] == [8, 8, 8]
    for half in (slice(0, 4), slice(4, 8)):
        assert sorted(i for found in ran for batch in found[half] for i in batch) == list(range(23))


def test_a_worker_with_too_few_examples_repeats_its_own() -> None:
    """The others must not wait for ever in a collective of the loop."""

    def work(comm: Any) -> list[list[int]]:
        return list(Sampler(TensorDataset(torch.arange(9)), partition=Contiguous(), batch=Fixed([1, 4])))

    one, two = spawn(work, 2, virtual=True)
    assert len(one) == len(two) == 5
    assert sorted(i for b in one for i in b) == [0, 1, 2, 3, 4]
    assert sorted(i for b in two[:4] for i in b) == [5, 6, 7, 8]
    assert two[4] == [5, 6, 7, 8], "its own block again: neither an empty batch nor a single example"


def test_a_worker_that_ran_out_begins_its_block_again(tmp_path: Path) -> None:
    """A full batch in each step, one part after the other."""

    def work(comm: Any) -> list[list[int]]:
        return list(Sampler(TensorDataset(torch.arange(9)), partition=FromFile(path=str(path)), batch=1))

    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"blocks": [[0, 1, 2, 3, 4, 5, 6], [7, 8]]}))
    one, two = spawn(work, 2, virtual=True)
    assert sorted(i for b in one for i in b) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(two[0] + two[1]) == [7, 8]
    assert two[2:] == [[7], [8], [7], [8], [7]]
