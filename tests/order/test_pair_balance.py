"""PairBalance: the mathematics on fixed vectors, then odd numbers, groups, stops and resumes."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.order import GraB, PairBalance, Reshuffle
from equipoise.order.reordering import reorder
from equipoise.signal import Rows

from .drive import bound, floor, largest_prefix, least_squares, sphere, visit


def test_front_keeps_its_order_and_back_is_reversed() -> None:
    assert reorder([1, 4], [2, 3], []) == [1, 4, 3, 2]
    assert reorder([1], [2], [8, 9]) == [1, 8, 9, 2]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_signs_plus_and_minus_give_the_order_1_4_3_2(batch: int) -> None:
    """Whatever the batches: a pair that two of them share is carried over."""
    order = bound(PairBalance(signal="exact"), 4)
    first = order.epoch(0)
    vectors = torch.zeros(4, 1, dtype=torch.float64)
    vectors[torch.from_numpy(first)] = torch.tensor([[2.0], [1.0], [5.0], [4.0]], dtype=torch.float64)  # v = 1, then 1
    visit(order, vectors, 0, batch)
    assert order.epoch(1).tolist() == first[[0, 3, 2, 1]].tolist()


@given(
    n=st.integers(1, 40),
    batch=st.integers(1, 12),
    group=st.integers(1, 5),
    mean=st.booleans(),
    skipped=st.sets(st.integers(0, 40)),
    stop=st.integers(0, 40),
)
def test_always_a_permutation(n: int, batch: int, group: int, mean: bool, skipped: set[int], stop: int) -> None:
    """Odd n, short last batches, groups, batches that did not count, an epoch that ended early."""
    vectors = sphere(n, 3, seed=n)
    order = bound(GraB(signal="exact", group=group) if mean else PairBalance(signal="exact", group=group), n)
    for epoch in range(4):
        positions = order.epoch(epoch)
        assert sorted(positions.tolist()) == list(range(n))
        for number, start in enumerate(range(0, n if epoch != 1 else min(stop, n), batch)):
            part = positions[start : start + batch]
            if epoch == 2 and number in skipped:
                order.observe(part[:0], None)
            else:
                order.observe(part, Rows(vectors[torch.from_numpy(part)], [1] * len(part)))


def test_an_odd_one_out_stays_in_the_middle() -> None:
    order, vectors = bound(PairBalance(signal="exact"), 7), sphere(7, 3)
    first = visit(order, vectors, 0, 3)
    assert order.epoch(1)[3] == first[-1]


def test_epochs_asked_for_twice_are_the_same() -> None:
    order, vectors = bound(PairBalance(signal="exact"), 10), sphere(10, 3)
    visit(order, vectors, 0, 4)
    assert order.epoch(1).tolist() == order.epoch(1).tolist()


@pytest.mark.parametrize("method", [PairBalance, GraB])
def test_halving_lemma(method: type) -> None:
    """H' <= (A + H) / 2 to rounding, for vectors of sum zero and unequal norms."""
    for seed in range(12):
        halves(method, seed)


def halves(method: type, seed: int) -> None:
    generator = np.random.default_rng(seed)
    n, d = 2 * int(generator.integers(8, 100)), int(generator.integers(1, 40))
    vectors = torch.from_numpy(generator.standard_normal((n, d)) * generator.exponential(1, (n, 1)))
    vectors -= vectors.mean(0)
    order = bound(method(signal="exact"), n)
    positions = visit(order, vectors, 0, n)
    rows, following = vectors[torch.from_numpy(positions)], vectors[torch.from_numpy(order.epoch(1))]
    place = {int(p): i for i, p in enumerate(positions)}
    front = {place[int(p)] for p in order.epoch(1)[: len(following) // 2]}
    if method is PairBalance:
        signs = torch.tensor([1.0 if 2 * k in front else -1.0 for k in range(n // 2)], dtype=torch.float64)
        signed = (signs[:, None] * (rows[::2] - rows[1::2])).cumsum(0)
        before = rows.cumsum(0)[1::2].norm(dim=1).max()
    else:
        # The sign of each is whether it stands before the place where the order turns round.
        turn = [place[int(p)] for p in order.epoch(1)]
        ahead = 0
        while ahead + 1 < n and turn[ahead + 1] > turn[ahead]:
            ahead += 1
        best = None
        for last in range(ahead + 2):
            plus = set(turn[:last])
            signs = torch.tensor([1.0 if k in plus else -1.0 for k in range(n)], dtype=torch.float64)
            total = (signs[:, None] * rows).cumsum(0).norm(dim=1).max()
            best = total if best is None else min(best, total)
        signed, before = best.reshape(1, 1), rows.cumsum(0).norm(dim=1).max()
    after = following.cumsum(0).norm(dim=1).max()
    # Prefixes are taken after each pair: one more vector inside a pair.
    slack = rows.norm(dim=1).max() if method is PairBalance else 0.0
    assert after <= (signed.norm(dim=1).max() + before) / 2 + slack + 1e-9, seed


def test_the_floor_does_not_grow_with_the_number_of_examples() -> None:
    """d = 16 after 15 rounds: 2.9 to 3.5 in the specification, where random has 9.5 and 36."""
    for n, random in ((256, 9.5), (4096, 36.0)):
        vectors = sphere(n, 16)
        assert 2.0 < floor(PairBalance(signal="exact"), vectors, 15) < 3.7
        assert largest_prefix(vectors) == pytest.approx(random, rel=0.25)


def test_the_floor_grows_like_the_root_of_the_dimension() -> None:
    floors = {d: floor(PairBalance(signal="exact"), sphere(2048, d), 13) for d in (4, 16, 64)}
    assert floors[16] / floors[4] == pytest.approx(2.0, rel=0.3)
    assert floors[64] / floors[16] == pytest.approx(2.0, rel=0.3)


@pytest.mark.parametrize("d", [4, 16, 64])
def test_stationary_norm_of_the_running_sum(d: int) -> None:
    """sqrt(pi d / 8) = 0.63 sqrt(d) for unit vectors added one by one, whatever their number."""
    vectors, order = sphere(4000, d, seed=1), bound(GraB(signal="exact"), 4000)
    positions, squares = order.epoch(0), []
    for start in range(0, 4000, 4):
        part = positions[start : start + 4]
        order.observe(part, Rows(vectors[torch.from_numpy(part)], [1] * 4))
        squares.append(float(order.builder.total @ order.builder.total))
    assert np.sqrt(np.mean(squares[100:])) == pytest.approx(np.sqrt(np.pi * d / 8), rel=0.06)


def test_blind_to_a_constant() -> None:
    vectors = sphere(64, 8)
    plain, moved = bound(PairBalance(signal="exact"), 64), bound(PairBalance(signal="exact"), 64)
    for epoch in range(5):
        visit(plain, vectors, epoch, 7)
        visit(moved, vectors + 3.0, epoch, 7)
        assert plain.epoch(epoch + 1).tolist() == moved.epoch(epoch + 1).tolist()


def test_least_squares_table() -> None:
    """60 epochs of step 1/n: RR 3.5e-3 and 5.1e-4 for n = 128 and 512, pair 3.7e-4 and 4.3e-6 in the specification."""
    pair = {n: least_squares(PairBalance(signal="exact"), n, 0) for n in (64, 256)}
    random = {n: np.mean([least_squares(Reshuffle(), n, s) for s in range(3)]) for n in (64, 128, 256, 512)}
    assert random[128] == pytest.approx(3.5e-3, rel=0.7)
    assert random[512] == pytest.approx(5.1e-4, rel=0.7)
    assert pair[64] < random[64] / 2
    assert pair[256] < random[256] / 25
    assert pair[64] / pair[256] > 20  # random falls like 1/n: a sixth or so


def test_groups_stay_together_and_are_ordered_by_their_means() -> None:
    n, group = 24, 3
    order, vectors = bound(PairBalance(signal="exact", group=group), n), sphere(24, 5)
    first = visit(order, vectors, 0, 7)
    sets = [frozenset(first[i : i + group].tolist()) for i in range(0, n, group)]
    means = torch.stack([vectors[torch.from_numpy(first[i : i + group])].mean(0) for i in range(0, n, group)])
    units = bound(PairBalance(signal="exact"), n // group)
    sequence = units.epoch(0)
    rows = torch.empty_like(means)
    rows[torch.from_numpy(sequence)] = means
    visit(units, rows, 0, 8)
    expected = [sets[list(sequence).index(u)] for u in units.epoch(1)]
    second = order.epoch(1)
    assert [frozenset(second[i : i + group].tolist()) for i in range(0, n, group)] == expected


def test_a_group_that_is_smaller_stays_last() -> None:
    order, vectors = bound(PairBalance(signal="exact", group=4), 18), sphere(18, 5)
    last = {epoch: frozenset(visit(order, vectors, epoch, 4)[-2:].tolist()) for epoch in range(4)}
    assert len(set(last.values())) == 1


@pytest.mark.parametrize("sign", ["greedy", "halving", "walk"])
def test_resume_inside_an_epoch(sign: str) -> None:
    for batch, stop in itertools.product((1, 3, 8), (5, 11, 30)):
        assert resumed_order(sign, batch, stop) == undisturbed_order(sign, batch), (batch, stop)


def undisturbed_order(sign: str, batch: int) -> list[int]:
    order = bound(PairBalance(signal="exact", sign=sign), 40)
    for epoch in range(3):
        visit(order, sphere(40, 6), epoch, batch)
    return order.epoch(3).tolist()


def resumed_order(sign: str, batch: int, stop: int) -> list[int]:
    vectors = sphere(40, 6)
    half = bound(PairBalance(signal="exact", sign=sign), 40)
    upto = stop // batch * batch
    visit(half, vectors, 0, batch)
    visit(half, vectors, 1, batch, upto)
    state = half.state_dict()
    visit(half, vectors, 2, batch)  # what happens later must not reach into the state
    resumed = bound(PairBalance(signal="exact", sign=sign), 40)
    resumed.load_state_dict(state)
    positions = resumed.epoch(1)
    for start in range(upto, 40, batch):
        part = positions[start : start + batch]
        resumed.observe(part, Rows(vectors[torch.from_numpy(part)], [1] * len(part)))
    visit(resumed, vectors, 2, batch)
    return resumed.epoch(3).tolist()


def test_one_gradient_per_batch_needs_groups() -> None:
    with pytest.raises(UserError, match="set group to the batch size"):
        PairBalance(signal="batch")


def problem(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 6, generator=generator)
    return x, (x @ torch.randn(6, 3, generator=generator)).argmax(1)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


@pytest.mark.parametrize("options", [{}, {"batch": 7}, {"micro": 3}, {"batch": 1}, {"drop_last": True, "batch": 8}])
@pytest.mark.parametrize("group", [1, 2])
def test_training_uses_the_signs_of_materialized_gradients(
    options: dict, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in the loop against PairBalance on gradients that autograd computes one by one, from the same
    models.
    """
    from equipoise.loop import gradient as taken
    from equipoise.loop.worker import Worker

    x, y = problem()
    loss, steps_taken = nn.CrossEntropyLoss(), []
    original = taken.gradient

    def spy(worker: Worker, indices: np.ndarray) -> float:
        rows = []
        for i in indices:
            gradients = torch.autograd.grad(
                loss(worker.model(x[i : i + 1]), y[i : i + 1]), list(worker.model.parameters())
            )
            rows.append(torch.cat([g.reshape(-1) for g in gradients]))
        steps_taken.append((worker.clock.epoch, indices.copy(), torch.stack(rows).double()))
        return original(worker, indices)

    monkeypatch.setattr(taken, "gradient", spy)
    order = PairBalance(signal="exact", group=group)
    eq.train(net, loss, (x, y), order=order, epochs=4, **{"batch": 8, **options})
    twin = bound(order, 60)
    # The partition is a permutation: positions in the block follow from the first epoch.
    block = np.empty(60, dtype=np.int64)
    first = np.concatenate([indices for epoch, indices, _ in steps_taken if epoch == 0])
    block[twin.epoch(0)[: len(first)]] = first
    if len(first) < 60:
        block[twin.epoch(0)[len(first) :]] = np.setdiff1d(np.arange(60), first)[: 60 - len(first)]
    place = {int(index): p for p, index in enumerate(block)}
    for epoch in range(4):
        expected = twin.epoch(epoch)
        steps = [(indices, rows) for e, indices, rows in steps_taken if e == epoch]
        visited = np.concatenate([indices for indices, _ in steps])
        if len(first) == 60:
            assert block[expected[: len(visited)]].tolist() == visited.tolist(), epoch
        else:
            assert len(set(visited.tolist())) == 56
        for indices, rows in steps:
            twin.observe(np.array([place[int(i)] for i in indices]), Rows(rows, [1] * len(rows)))


def test_another_number_of_workers_after_a_resume(tmp_path: object) -> None:
    x, y = problem(61)
    common = {"order": eq.order.CDGraB(signal="exact"), "batch": 4, "out": tmp_path}
    eq.train(net, nn.CrossEntropyLoss(), (x, y), workers=3, steps=8, **common)
    run = eq.train(net, nn.CrossEntropyLoss(), (x, y), workers=2, epochs=4, resume=True, **common)
    assert run.result["samples"] == 4 * 61


def test_a_batch_that_is_skipped_keeps_the_order_valid() -> None:
    x, y = problem()
    x[7] = float("nan")
    run = eq.train(
        net,
        nn.CrossEntropyLoss(),
        (x, y),
        order=PairBalance(signal="exact"),
        batch=4,
        epochs=3,
        nonfinite="skip",
        test=(x[:4], y[:4]),
    )
    assert run.result["samples"] == 3 * 60
    assert np.isfinite(run.result["models"]["mean"]["loss"])


def test_batch_norm_is_ordered_by_whole_batches() -> None:
    x, y = problem()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(UserError, match="BatchNorm"):
        eq.train(model, nn.CrossEntropyLoss(), (x, y), order=PairBalance(signal="exact"), epochs=1)
    run = eq.train(model, nn.CrossEntropyLoss(), (x, y), order=PairBalance(signal="batch", group=6), batch=6, epochs=4)
    assert 0 < run.result["health"]["herding"] < 3
