"""Sketches that are kept until an epoch ends, and balanced several times."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.order import CDGraB, GraB, IDGraB, PairBalance
from equipoise.order.prefix_norm import random_prefix
from equipoise.order.sweeps import Kept, _in_sequence, balance_kept
from equipoise.signal import Rows
from equipoise.signal.layer_sketch import LayerSketch

from .drive import bound, largest_prefix, parallel_floor, sphere, visit


def greedy(sweep: int) -> Any:
    return lambda product, square: 1 if product <= 0 else -1


@pytest.fixture
def last_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last sweep is the result, not the best one."""
    falling = itertools.count(-1, -1)
    monkeypatch.setattr("equipoise.order.sweeps._largest_prefix", lambda rows, order, begins: float(next(falling)))


@pytest.mark.usefixtures("last_sweep")
@pytest.mark.parametrize("batch", [2, 4, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_sweep_is_an_epoch_of_pair_balance(batch: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same signs in the same sequence over workers as the published algorithm, epoch after epoch."""
    monkeypatch.setattr("equipoise.order.kept_epoch.balance_kept", lambda a, b, sweeps, *d: balance_kept(a, b, 1, *d))
    blocks = [sphere(20, 5, seed=w) for w in range(workers)]

    def loop(comm: Any) -> list[list[int]]:
        orders = [bound(CDGraB(signal="exact", every=1, sweeps=sweeps), 20, comm) for sweeps in (2, 1)]
        for order in orders:
            for epoch in range(3):
                visit(order, blocks[comm.rank], epoch, batch)
        return [order.epoch(3).tolist() for order in orders]

    for kept, streamed in eq.spawn(loop, workers, virtual=True):
        assert kept == streamed


@pytest.mark.usefixtures("last_sweep")
def test_sweeps_are_epochs_on_fixed_vectors() -> None:
    vectors = sphere(64, 6)
    first = np.random.default_rng([0, 0, 1, 0]).permutation(64)
    balanced = balance_kept([Kept(vectors[torch.from_numpy(first)], np.arange(64) // 2)], (1.0, -1.0), 4, greedy)
    order = bound(PairBalance(signal="exact"), 64)
    for epoch in range(4):
        visit(order, vectors, epoch, 2)
    assert first[balanced.orders[0][0]].tolist() == order.epoch(4).tolist()


def test_one_epoch_reaches_the_floor_for_any_number_of_workers() -> None:
    """d = 16: streamed balancing reaches 3.3 in ten epochs, a random order has about 20."""
    vectors = sphere(1024, 16)
    floors = [parallel_floor(lambda: CDGraB(sweeps=8), vectors, w, 1, 16 // w) for w in (1, 4, 16)]
    assert all(2.0 < value < 4.2 for value in floors), floors
    alone = parallel_floor(lambda: IDGraB(sweeps=8), vectors, 16, 1, 1)
    assert alone > 2 * max(floors)


def test_the_mean_of_kept_vectors_needs_no_estimate() -> None:
    """Mean balance is spoilt by a constant in its first epoch, where it has no mean yet; kept vectors have one."""
    vectors = sphere(512, 8)
    orders = []
    for shift in (0.0, 7.0):
        order = bound(GraB(sweeps=8), 512)
        visit(order, vectors + shift, 0, 4)
        orders.append(order.epoch(1))
    np.testing.assert_array_equal(*orders)
    assert largest_prefix(vectors[torch.from_numpy(orders[0])]) < 4


def test_the_best_sweep_is_taken() -> None:
    """Also where a later one is worse; not the visited order, whose batches would come again."""
    rows = sphere(64, 24)
    kept = [Kept(rows, np.arange(64))]
    orders = [balance_kept(kept, (1.0, -1.0), sweeps, greedy).orders[0][0] for sweeps in range(1, 9)]
    prefixes = [largest_prefix(rows[torch.from_numpy(order)]) for order in orders]
    assert prefixes == sorted(prefixes, reverse=True)
    assert len({tuple(order) for order in orders}) < 8
    assert all(order.tolist() != list(range(64)) for order in orders)


def test_further_epochs_are_further_sweeps() -> None:
    kept = [Kept(sphere(30, 4, seed=w), np.arange(30) // 3) for w in range(2)]
    together = balance_kept(kept, (1.0, -1.0), 1, greedy, lambda visited: 3).orders
    for w in range(2):
        assert together[w].shape == (3, 30)
    again = balance_kept(
        [Kept(k.rows[torch.from_numpy(o[0])], k.steps) for k, o in zip(kept, together, strict=True)],
        (1.0, -1.0),
        1,
        greedy,
        lambda visited: 2,
    ).orders
    for first, second in zip(together, again, strict=True):
        np.testing.assert_array_equal(first[0][second], first[1:])


def test_units_without_a_vector_go_to_the_middle() -> None:
    order, vectors = bound(PairBalance(sweeps=8), 12), sphere(12, 3)
    first = order.epoch(0)
    for start in range(0, 12, 2):
        part = first[start : start + 2]
        missed = start == 4
        order.observe(part[:0] if missed else part, None if missed else Rows(vectors[torch.from_numpy(part)], [1, 1]))
    assert sorted(order.epoch(1)[5:7].tolist()) == sorted(first[4:6].tolist())
    assert sorted(order.epoch(1).tolist()) == list(range(12))


@pytest.mark.parametrize("signal", ["projection", "batch"])
def test_a_group_has_the_mean_of_its_members(signal: str) -> None:
    vectors, size = sphere(16, 4), 4
    order = bound(PairBalance(signal=signal, group=size, sweeps=2), 16)
    positions = order.epoch(0)
    for part in positions.reshape(-1, size):
        rows = vectors[torch.from_numpy(part)]
        view = Rows(rows.mean(0, keepdim=True), [size]) if signal == "batch" else Rows(rows, [1] * size)
        order.observe(part, view)
    means = torch.stack([vectors[torch.from_numpy(members)].mean(0) for members in order.builder.units.members])
    order.builder._store()
    torch.testing.assert_close(order.builder.rows, means)


def test_groups_are_learned_anew_in_each_epoch() -> None:
    """Nothing of the epoch before is left in their means; a short group gets no vector, and no place in the order."""
    first, second = sphere(30, 4), sphere(30, 4, seed=1)
    order = bound(PairBalance(signal="projection", group=4, every=1, sweeps=4), 30)
    visit(order, first, 0, 4)
    visit(order, second, 1, 2)
    members, sequence = order.builder.units.members, order.builder.units.sequence
    order.builder._store()
    assert order.builder.steps[sequence].tolist() == [2, 4, 6, 8, 10, 12, 14, 15], (
        "a group is complete with its last member"
    )
    means = torch.stack([second[torch.from_numpy(group)].mean(0) for group in members])
    torch.testing.assert_close(order.builder.rows, means)
    kept = Kept(means[torch.tensor(sequence[:7])], np.arange(7))
    expected = np.array(sequence)[balance_kept([kept], (1.0, -1.0), 4, greedy).orders[0][0]]
    assert order.epoch(2).tolist() == [*np.concatenate([members[unit] for unit in expected]), *members[7]]


def test_herding_is_relative_to_a_random_order() -> None:
    """The value of the learned order, by the definition, over the expectation for a random one of these vectors."""
    vectors = sphere(1024, 16)
    order = bound(PairBalance(sweeps=8), 1024)
    visit(order, vectors, 0, 1)
    reached = largest_prefix(vectors[torch.from_numpy(order.epoch(1))])
    draw = torch.Generator().manual_seed(0)
    random = np.mean([largest_prefix(vectors[torch.randperm(1024, generator=draw)]) for _ in range(60)])
    assert order.herding == pytest.approx(reached / random, rel=0.15)
    assert order.builder.dimension == pytest.approx(16, rel=0.1)


def test_prefixes_end_where_steps_end() -> None:
    """Of all workers together: in step k each of them takes its k-th batch, whatever its size."""
    kept = [Kept(sphere(12, 3, seed=0), np.arange(12) // 3), Kept(sphere(8, 3, seed=1), np.arange(8) // 2)]
    balanced = balance_kept(kept, (1.0, -1.0), 1, greedy)
    mean = torch.cat([own.rows for own in kept]).mean(0)
    steps = [own.rows[torch.from_numpy(order[0])] - mean for own, order in zip(kept, balanced.orders, strict=True)]
    sums = sum(rows.reshape(4, -1, 3).sum(1) for rows in steps)
    largest = float(sums.cumsum(0).norm(dim=1).max())
    variance = float(torch.cat([own.rows - mean for own in kept]).square().sum()) / 20
    assert balanced.herding == pytest.approx(largest / random_prefix(20.0, variance, balanced.dimension))


def test_terms_are_signed_when_they_are_complete() -> None:
    """Batches of three and of two: a pair over two steps belongs to the second of them. An odd unit has no term."""
    workers = [Kept(sphere(7, 2), np.array([1, 1, 1, 2, 2, 2, 3])), Kept(sphere(6, 2), np.array([1, 1, 2, 2, 3, 3]))]
    terms, sequence = _in_sequence(workers, 2)
    assert terms[sequence].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
    order = balance_kept(workers[:1], (1.0, -1.0), 1, greedy).orders[0][0].tolist()
    assert order[3] == 6, "it goes to the middle"


def test_blocks_of_terms_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [Kept(sphere(64, 6, seed=w), np.arange(64)) for w in range(2)]
    whole = balance_kept(kept, (1.0, -1.0), 3, greedy)
    monkeypatch.setattr("equipoise.order.sweeps._BLOCK", 3)
    parts = balance_kept(kept, (1.0, -1.0), 3, greedy)
    for one, two in zip(whole.orders, parts.orders, strict=True):
        np.testing.assert_array_equal(one, two)


def test_every_sweep_has_its_own_rule() -> None:
    """Rules that draw or count epochs go on from sweep to sweep, and from there to the epochs in between."""
    numbers: list[int] = []

    def rule(sweep: int) -> Any:
        numbers.append(sweep)
        return greedy(sweep)

    balance_kept([Kept(sphere(64, 24), np.arange(64))], (1.0, -1.0), 2, rule, lambda visited: 4)
    assert numbers == [0, 1, 2, 3, 4]
    builder = bound(PairBalance(signal="projection", sign="walk"), 12).builder
    draws = [[builder._rule(sweep)(0.0, 1.0) for _ in range(40)] for sweep in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    builder.rule = lambda product, square, memory, draw: int(1000 * memory["epochs"] + memory["terms"])
    builder.number = 5
    assert builder._rule(2)(0.0, 1.0) == 8006  # epoch 6 of those learned, two sweeps on; six pairs


def test_each_worker_sends_its_sketches_once() -> None:
    """n rows of k + 1 numbers to rank 0, four numbers to everybody, and n indices back for each of 5 epochs."""
    blocks = [sphere(8, 5, seed=w).float() for w in range(3)]

    def loop(comm: Any) -> int:
        order = bound(CDGraB(sweeps=8, every=5), 8, comm)
        visit(order, blocks[comm.rank], 0, 2)
        assert comm.ledger.bytes == 0
        order.epoch(1)
        return comm.ledger.bytes

    sent = eq.spawn(loop, 3, virtual=True)
    assert sum(sent) == 2 * (8 * 6 * 4 + 5 * 8 * 8) + 2 * 4 * 8


def test_more_than_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.order.kept_epoch._MOST", 100)
    order = bound(PairBalance(sweeps=2), 40)
    with pytest.raises(UserError, match="--order.sweeps 1"):
        visit(order, sphere(40, 5), 0, 4)

    def loop(comm: Any) -> None:
        """Rank 0 has the sketches of all: 3 times 8 times 5 numbers."""
        with pytest.raises(UserError, match="120 numbers"):
            visit(bound(CDGraB(sweeps=2), 8, comm), sphere(8, 5), 0, 4)
        visit(bound(IDGraB(sweeps=2), 8, comm), sphere(8, 5), 0, 4)

    eq.spawn(loop, 3, virtual=True)


def test_a_checkpoint_of_a_streamed_order_names_its_option() -> None:
    """What was the default has another state."""
    streamed, kept = bound(PairBalance(sweeps=1), 12), bound(PairBalance(), 12)
    with pytest.raises(UserError, match="--order.sweeps 1"):
        kept.load_state_dict(streamed.state_dict())


def test_what_was_learned_survives_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of a learned epoch: the sketches, the orders to come, and what was said of the last one."""
    vectors = sphere(24, 40)
    order, other = (bound(PairBalance(signal="projection", every=3, sweeps=4), 24) for _ in range(2))
    for epoch in range(3):
        visit(order, vectors, epoch, 4)
    positions = visit(order, vectors, 3, 4, upto=12)
    other.load_state_dict(copy.deepcopy(order.state_dict()))
    assert other.herding == order.herding > 0
    assert other.builder.dimension == order.builder.dimension
    ends = []
    for each in (order, other):
        for start in range(12, 24, 4):
            part = positions[start : start + 4]
            each.observe(part, Rows(vectors[torch.from_numpy(part)], [1] * 4))
        ends.append([each.builder.step, *each.builder.steps, *each.epoch(4), *each.epoch(5), *each.epoch(6)])
    assert ends[0] == ends[1]
    assert len([r for r in caplog.records if "nothing to gain" in r.message]) == 1


@pytest.mark.parametrize("method", [CDGraB, IDGraB])
def test_who_balances_together_has_the_examples_of_all(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    """24 directions for 32 examples are too many, for 4 times 32 they are not."""

    def loop(comm: Any) -> None:
        order = bound(method(), 32, comm)
        visit(order, sphere(32, 24, seed=comm.rank), 0, 4)
        order.epoch(1)

    eq.spawn(loop, 4, virtual=True)
    assert ("nothing to gain" in caplog.text) == (method is IDGraB)


def test_options_that_need_signs_at_once_are_refused() -> None:
    for make in (lambda: GraB(levels=2, sweeps=2), lambda: CDGraB(coordinate="stale", sweeps=2)):
        with pytest.raises(UserError, match="sweeps = 1"):
            make()
    with pytest.raises(UserError, match="no vectors"):
        PairBalance(signal="forward", sweeps=2)


def test_training_on_processes_gives_the_bits_of_virtual_workers() -> None:
    x = torch.randn(48, 5, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))

    def run(virtual: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"workers": 3, "epochs": 3, "batch": 4, "deterministic": True, "virtual": virtual}
        return eq.train(net, nn.CrossEntropyLoss(), data, order=CDGraB(signal="projection", sweeps=8), **options).result

    virtual, processes = run(True), run(False)
    assert virtual["params_sha256"] == processes["params_sha256"]
    assert virtual["bytes"] == processes["bytes"]
    assert virtual["health"]["herding"] < 1.0


class Learner:
    """An order with its own signal on a small net whose batches have unequal sizes, in a loop without training."""

    def __init__(self, examples: int = 40):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 3))
        self.x = torch.randn(examples, 6)
        self.order = bound(PairBalance(every=1), examples)

    def visit(self, positions: np.ndarray) -> None:
        signal, inputs = self.order.watcher, self.x[torch.from_numpy(positions)]
        with signal.watching(self.net, len(inputs)):
            self.net(inputs).square().sum(1).mean().backward()
        self.order.observe(positions, signal.view())


def batches_of(positions: np.ndarray) -> list[np.ndarray]:
    return np.split(positions, [1, 4, 5, 9, 10, 20, 21, 30])


def test_vectors_of_many_steps_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is stored with others; the sketches are those that it would have alone, each with its own batch size."""
    stored = []
    for most in (1, 3000, 1 << 30):
        monkeypatch.setattr("equipoise.order.kept_epoch._PENDING", most)
        learner = Learner()
        for part in batches_of(learner.order.epoch(0)):
            learner.visit(part)
        learner.order.builder._store()
        stored.append(learner.order.builder.rows)
        np.testing.assert_array_equal(learner.order.builder.steps[learner.order.builder.units.of[part]], 9)
    for rows in stored[1:]:
        torch.testing.assert_close(rows, stored[0], rtol=1e-5, atol=1e-5)
    assert float(stored[0].norm(dim=1).min()) > 0


def test_a_resumed_epoch_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of a product depend on its size (here: much more): what is not stored yet is resumed as it is."""
    sketch = LayerSketch.__call__
    monkeypatch.setattr(LayerSketch, "__call__", lambda self, a, d: sketch(self, a, d) * len(a))
    monkeypatch.setattr("equipoise.order.kept_epoch._PENDING", 8000)
    never, saved, resumed = Learner(), Learner(), Learner()
    parts = batches_of(never.order.epoch(0))
    saved.order.epoch(0), resumed.order.epoch(0)
    for number, part in enumerate(parts):
        never.visit(part)
        saved.visit(part)
        if number == 6:
            assert saved.order.builder.pending
            resumed.order.load_state_dict(saved.order.state_dict())
        elif number > 6:
            resumed.visit(part)
    orders = [learner.order.epoch(1).tolist() for learner in (never, saved, resumed)]
    assert orders[0] == orders[1] == orders[2]
    for learner in (saved, resumed):
        assert torch.equal(learner.order.builder.rows, never.order.builder.rows)


def test_sweeps_end_where_they_gain_little() -> None:
    """The first that leaves nine tenths of the largest prefix is the last."""
    vectors, made = sphere(512, 8), []

    def rule(sweep: int) -> Any:
        made.append(sweep)
        return greedy(sweep)

    balance_kept([Kept(vectors, np.arange(512))], (1.0, -1.0), 50, rule)
    count = len(made)
    assert 4 <= count <= 10
    reached = []
    for sweeps in range(1, count + 1):
        order = balance_kept([Kept(vectors, np.arange(512))], (1.0, -1.0), sweeps, greedy).orders[0][0]
        reached.append(largest_prefix(vectors[torch.from_numpy(order)]))
    assert all(later <= 0.9 * earlier for earlier, later in itertools.pairwise(reached[:-1]))
    assert reached[-1] > 0.9 * reached[-2]
