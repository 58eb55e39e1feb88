"""`partition = queue`: every epoch has each example once, whoever claims it; saved, resumed and handed out again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.comm.virtual import VirtualComm, World
from equipoise.core.context import Context, WorkerInfo
from equipoise.core.errors import UserError
from equipoise.loop.positions import position_of, sizes_of
from equipoise.loop.queue_position import QueuePosition
from equipoise.simulate.cluster import Cluster
from equipoise.testing.promises import BITS, same

from ..checkpoint.test_elastic import TEST, Watched
from ..comm.workers import both
from ..contract import toy
from ..loop.problem import EXAMPLES, plain

QUEUE = eq.partition.Queue()
UNEQUAL = Cluster([1000.0, 1000.0, 4000.0])


def positions(examples: int, batch: Any, workers: int, order: Any = None) -> list[QueuePosition]:
    """The position of every worker, in lockstep."""
    world = World(workers)
    blocks = np.array_split(np.arange(examples), workers)
    made = []
    for rank in range(workers):
        worker = WorkerInfo(rank, workers, 3, shares=(1 / workers,) * workers)
        context = Context(VirtualComm(world, world.workers[rank]), worker=worker)
        one = position_of(QUEUE, context, blocks, order or eq.order.Reshuffle(), batch)
        assert isinstance(one, QueuePosition)
        made.append(one)
    return made


def step(workers: list[QueuePosition]) -> list[np.ndarray]:
    """What each worker takes, while all agree how far the epoch is."""
    left = {w.steps_left for w in workers}
    assert len(left) == 1, "workers disagree where the epoch ends"
    taken = [w.take()[0] for w in workers]
    assert {w.steps_left for w in workers} == {left.pop() - 1}, "a step is one step"
    return taken


@given(st.integers(1, 200), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.booleans(), st.integers(0, 3))
def test_together_they_take_each_example_of_an_epoch_once(n: int, sizes: list[int], spread: bool, epoch: int) -> None:
    batch = eq.batch.Proportional(sizes[0]) if spread else eq.batch.Fixed(sizes)
    workers = positions(n, batch, len(sizes))
    present = workers[0].batch.sizes()
    for w in workers:
        w.context.clock.consumed = n * epoch
        w.begin(epoch)
    steps = workers[0].steps_left
    assert steps == workers[0].steps_of_epoch() == -(-n // sum(present))
    seen: list[int] = []
    for number in range(steps):
        parts = step(workers)
        assert all(len(part) <= size for part, size in zip(parts, present, strict=True))
        if not spread and number < steps - 1:
            assert [len(part) for part in parts] == present, "full batches up to the last step"
        seen += np.concatenate(parts).tolist()
    assert sorted(seen) == list(range(n))
    assert {(w.left, w.part_done, w.consumed) for w in workers} == {(0, 1.0, n * (epoch + 1))}


def test_the_order_acts_on_the_list_of_all() -> None:
    """Whatever their number, workers take their batches in rank order from the permutation of all examples."""
    for order in (eq.order.Reshuffle(), eq.order.Sequential(), eq.order.FlipFlop(), eq.order.PairedReversal(block=4)):
        lists = []
        for workers in (1, 3):
            made = positions(30, eq.batch.Fixed(5), workers, order)
            for epoch in (0, 1):
                for w in made:
                    w.begin(epoch)
                lists.append(np.concatenate([part for _ in range(made[0].steps_left) for part in step(made)]).tolist())
        assert lists[:2] == lists[2:]
        alone = order.bind(Context(made[0].context.comm, worker=WorkerInfo(seed=3, examples=30)))
        assert lists[:2] == [alone.epoch(0).tolist(), alone.epoch(1).tolist()]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 6))
def test_another_number_of_workers_goes_on_in_the_same_list(before: int, after: int, steps: int) -> None:
    """Batches change hands; together they are what is left of the list, in its order."""
    n = 83
    first = positions(n, eq.batch.Fixed(3), before)
    taken = [np.concatenate(step(first)) for _ in range(min(steps, first[0].steps_left))]
    states = [w.state_dict() for w in first]
    second = positions(n, eq.batch.Fixed(4), after)
    for w in second:
        w.redistribute(states)
    taken += [np.concatenate(step(second)) for _ in range(second[0].steps_left)]
    assert np.concatenate(taken).tolist() == first[0].order.epoch(0).tolist()


def test_shares_follow_the_batches() -> None:
    blocks = np.array_split(np.arange(60), 3)
    assert sizes_of(QUEUE, eq.batch.Fixed([8, 8, 32]), blocks) == [10, 10, 40]
    assert sizes_of(QUEUE, eq.batch.Fixed(8), blocks) == [20, 20, 20]
    assert sizes_of(eq.partition.IID(), eq.batch.Fixed([8, 8, 32]), blocks) == [20, 20, 20]


@both
@pytest.mark.parametrize("period", [eq.period.Every(2), eq.period.TotalSteps(3)], ids=["every", "total-steps"])
def test_each_example_of_every_epoch_once(virtual: bool, period: Any, tmp_path: Path) -> None:
    """Stopped and resumed on other numbers of workers. What was asked of the data set is what was trained on."""
    data = Watched(tmp_path / "log")
    how = {"batch": 3, "test": TEST, "out": tmp_path / "run", "virtual": virtual, "timeout": 30.0, "partition": QUEUE}
    how |= {"period": period, "sync": eq.sync.PeriodicAverage()}
    for workers, steps in ((4, 3), (3, 7), (1, 9)):
        eq.train(plain(), cross_entropy, data, workers=workers, steps=steps, resume=steps > 3, **how)
    result = eq.train(plain(), cross_entropy, data, workers=2, epochs=3, resume=True, **how).result
    counts = Counter(data.seen())
    if period.lockstep:
        assert set(counts.values()) == {3}
        assert result["samples"] == 3 * EXAMPLES
    else:
        # The run ends at a round: each example three times, and those that the fourth list begins with once more.
        assert result["samples"] == sum(counts.values()) >= 3 * EXAMPLES
        assert set(counts.values()) <= {3, 4}
    assert len(counts) == EXAMPLES
    assert result["queue"] == {
        "examples": EXAMPLES,
        "epochs": 3,
        "begun": result["samples"] - 3 * EXAMPLES,
    }


def test_fast_workers_claim_more_and_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    sync = eq.sync.PeriodicAverage(weights="samples")
    how: dict[str, Any] = {"partition": QUEUE, "period": eq.period.TotalSteps(4), "workers": 3, "cluster": UNEQUAL}
    expected = toy.train(sync, **how, steps=20, out=tmp_path / "one").result
    samples = [row["samples"] for row in expected["workers"]]
    assert samples[2] > 3 * samples[0]
    assert expected["queue"]["epochs"] == sum(samples) // toy.EXAMPLES == 2
    for steps in (8, 20):
        parts = toy.train(sync, **how, steps=steps, out=tmp_path / "two", resume=steps > 8).result
    same(parts, expected, BITS)
    same(toy.attach(sync, **how, steps=20), expected, BITS)
    for steps in (8, 20):
        own = toy.attach(sync, **how, steps=steps, log=tmp_path / "own")
    same(own, expected, BITS)


@pytest.mark.parametrize("period", [2, eq.period.TotalSteps(3)], ids=["every", "total-steps"])
def test_batches_drawn_ahead_are_not_lost(period: Any, tmp_path: Path) -> None:
    """A loader with two processes of its own has claimed four batches more than were used, at each checkpoint too."""
    ahead: dict[str, Any] = {"workers": 2, "num_workers": 2, "period": period, "partition": QUEUE}
    sync = eq.sync.PeriodicAverage()
    undisturbed = toy.attach(sync, **ahead, steps=30)
    for steps in (9, 18, 30):
        resumed = toy.attach(sync, **ahead, steps=steps, log=tmp_path / "resumed")
    same(resumed, undisturbed, BITS)


def test_epochs_are_told_when_they_are_agreed(tmp_path: Path) -> None:
    run = toy.train(QUEUE, epochs=3, steps=None, period=5, out=tmp_path, sync=eq.sync.PeriodicAverage())
    told = [event for event in run.events if event["event"] == "epoch"]
    # Seven steps to an epoch, a round every five: agreed at the first round after its end, or at the end of the run.
    for worker in range(toy.WORKERS):
        own = [(event["complete"], event["examples"], event["step"]) for event in told if event["worker"] == worker]
        assert own == [(1, toy.EXAMPLES, 10), (2, toy.EXAMPLES, 15), (3, toy.EXAMPLES, 21)]


@pytest.mark.parametrize(
    "order", [eq.order.GraB(), eq.order.CDGraB(), eq.order.Herding()], ids=lambda order: type(order).__name__
)
def test_an_order_that_learns_is_refused_in_one_line(order: Any) -> None:
    for refused in (
        lambda: toy.train(QUEUE, order=order),
        lambda: eq.Sampler((toy.INPUTS, toy.TARGETS), partition=QUEUE, order=order),
    ):
        with pytest.raises(UserError, match=r"learns the order of a block .*: use reshuffle, or partition iid$"):
            refused()


def test_what_leaves_examples_out_or_needs_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="drop_last leaves examples out"):
        toy.train(QUEUE, drop_last=True)
    from equipoise.data.view import DatasetView
    from equipoise.partition.study import study

    with pytest.raises(UserError, match="queue has no blocks to report on"):
        study(QUEUE, DatasetView(10), 2)
