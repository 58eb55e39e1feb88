"""CD-GraB: one running sum for all workers, and several ways to compute it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import WorkerError
from equipoise.order import CDGraB, PairBalance
from equipoise.order.coordinate import by_stale
from equipoise.order.sign_terms import TermSigns
from equipoise.signal import Rows

from .drive import bound, parallel_floor, sphere, visit


def by_definition(blocks: list[torch.Tensor], epochs: int, seed: int = 0) -> list[list[int]]:
    """The definition, with all vectors in one place: pairs of all workers in sequence against one S."""
    orders = [np.random.default_rng([seed, w, 1, 0]).permutation(len(b)).tolist() for w, b in enumerate(blocks)]
    for _ in range(epochs):
        total = torch.zeros_like(blocks[0][0])
        fronts: list[list[int]] = [[] for _ in blocks]
        backs: list[list[int]] = [[] for _ in blocks]
        for k in range(max(map(len, blocks)) // 2):
            for w, (order, block) in enumerate(zip(orders, blocks, strict=True)):
                if 2 * k + 1 >= len(order):
                    continue
                a, b = order[2 * k], order[2 * k + 1]
                v = block[a] - block[b]
                plus = bool(total @ v <= 0)
                total = total + v if plus else total - v
                fronts[w].append(a if plus else b)
                backs[w].append(b if plus else a)
        rests = [[p for p in o if p not in {*f, *b}] for o, f, b in zip(orders, fronts, backs, strict=True)]
        orders = [f + r + b[::-1] for f, b, r in zip(fronts, backs, rests, strict=True)]
    return orders


def by_workers(blocks: list[torch.Tensor], epochs: int, batch: int, **options: Any) -> list[list[int]]:
    """All workers take as many steps; one without remaining examples passes nothing."""
    steps = max(-(-len(b) // batch) for b in blocks)

    def loop(comm: Any) -> list[int]:
        mine = blocks[comm.rank]
        order = bound(CDGraB(signal="exact", **options), len(mine), comm)
        for epoch in range(epochs):
            positions = order.epoch(epoch)
            for step in range(steps):
                part = positions[step * batch : (step + 1) * batch]
                view = Rows(mine[torch.from_numpy(part)], [1] * len(part)) if len(part) else None
                order.observe(part, view)
        return order.epoch(epochs).tolist()

    return eq.spawn(loop, len(blocks), virtual=True)


def test_the_figure_of_the_paper() -> None:
    """Two workers, four examples: signs +, + and then -, - give the order 1, 4, 3, 2 on both."""

    def loop(comm: Any) -> tuple[list[int], list[int]]:
        order = bound(CDGraB(signal="exact"), 4, comm)
        first = order.epoch(0)
        vectors = torch.zeros(4, 2, dtype=torch.float64)
        vectors[torch.from_numpy(first[[0, 2]]), comm.rank] = 1.0  # differences e_w in both pairs
        visit(order, vectors, 0, 2)
        return first[[0, 3, 2, 1]].tolist(), order.epoch(1).tolist()

    for expected, order in eq.spawn(loop, 2, virtual=True):
        assert order == expected


@pytest.mark.parametrize("coordinate", ["auto", "shards"])
@pytest.mark.parametrize("sizes", [(12, 12, 12), (12, 7, 3), (4, 0, 9)])
def test_equals_the_definition(coordinate: str, sizes: tuple[int, ...]) -> None:
    """Unequal blocks, odd ones, an empty one; the sequence is term by term only where terms come step by step alike."""
    blocks = [sphere(n, 5, seed=w) if n else torch.zeros(0, 5, dtype=torch.float64) for w, n in enumerate(sizes)]
    for batch in (1, 2, 3, 5):
        orders = by_workers(blocks, 3, batch, coordinate=coordinate)
        for order, n in zip(orders, sizes, strict=True):
            assert sorted(order) == list(range(n)), batch
        if batch < 3 or len(set(sizes)) == 1:
            assert orders == by_definition(blocks, 3), batch


@pytest.mark.parametrize("sign", ["greedy", "walk"])
@pytest.mark.parametrize("together", [3, 8])
def test_steps_that_share_a_message_get_the_signs_of_single_steps(
    sign: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No difference depends on a sign. A worker that runs out early, pending steps at the end of an epoch."""
    blocks = [sphere(n, 6, seed=n) for n in (96, 81, 33)]
    monkeypatch.setattr("equipoise.order.cd_grab._TOGETHER", 1)
    singly = by_workers(blocks, 3, 2, sign=sign)
    monkeypatch.setattr("equipoise.order.cd_grab._TOGETHER", together)
    assert by_workers(blocks, 3, 2, sign=sign) == singly


def test_pending_differences_are_saved() -> None:
    """A checkpoint after each of the four steps that share a message."""
    blocks = [sphere(n, 6, seed=n) for n in (40, 32)]

    def loop(comm: Any) -> list[list[int]]:
        mine, orders = blocks[comm.rank], []
        for stop in (None, 4, 5, 6, 7):
            order = bound(CDGraB(signal="exact"), len(mine), comm)
            for epoch in range(2):
                positions = order.epoch(epoch)
                for step in range(20):
                    if epoch == 1 and step == stop:
                        assert order.delay == 4 or comm.size == 1
                        state, order = order.state_dict(), bound(CDGraB(signal="exact"), len(mine), comm)
                        assert (len(state["pending"]) > 0) == (stop % 4 > 0)
                        order.load_state_dict(state)
                    part = positions[2 * step : 2 * step + 2]
                    view = Rows(mine[torch.from_numpy(part)], [1] * len(part)) if len(part) else None
                    order.observe(part, view)
            orders.append(order.epoch(2).tolist())
        return orders

    for first, *others in eq.spawn(loop, 2, virtual=True):
        assert all(other == first for other in others)


def test_coordinated_is_flat_and_stale_and_independent_grow() -> None:
    """d = 16: 3.6, 3.4, 3.2 for 1, 4, 16 workers; stale 3.4, 3.6, 5.4; independent 3.4, 6.6, 13.1; random 80."""
    vectors = sphere(1024, 16)
    together = {w: parallel_floor(lambda: CDGraB(signal="exact"), vectors, w, 10, 256 // w) for w in (1, 8)}
    independent = {
        w: parallel_floor(lambda: eq.order.IDGraB(signal="exact"), vectors, w, 10, 256 // w) for w in (1, 4, 16)
    }
    stale = parallel_floor(lambda: CDGraB(signal="exact", coordinate="stale"), vectors, 16, 10, 4)
    assert all(2.4 < value < 3.8 for value in together.values())
    assert independent[4] / independent[1] == pytest.approx(2.0, rel=0.35)
    assert independent[16] / independent[1] == pytest.approx(4.0, rel=0.35)
    assert 4.2 < stale < 14.0


def test_one_worker_is_pair_balance() -> None:
    vectors = sphere(30, 5)
    one, other = bound(CDGraB(signal="exact"), 30), bound(PairBalance(signal="exact"), 30)
    for epoch in range(3):
        visit(one, vectors, epoch, 4)
        visit(other, vectors, epoch, 4)
    assert one.epoch(3).tolist() == other.epoch(3).tolist()


INPUTS = torch.randn(90, 6, generator=torch.Generator().manual_seed(4))
TARGETS = (INPUTS[:, :3] + 0.3 * INPUTS[:, 3:]).argmax(1)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.LayerNorm(10), nn.Linear(10, 3))


def trained(order: CDGraB, **changes: Any) -> dict[str, Any]:
    options = {"workers": 3, "epochs": 4, "batch": 6, "deterministic": True, **changes}
    return eq.train(net, nn.CrossEntropyLoss(), (INPUTS, TARGETS), order=order, **options).result


@cache
def coordinated(coordinate: str, signal: str = "exact") -> dict[str, Any]:
    """The result of an undisturbed run on virtual workers."""
    return trained(CDGraB(coordinate=coordinate, signal=signal, every=1))


def test_factors_and_shards_give_the_same_signs() -> None:
    """Exact either way: the same orders, so the same models although the last bits of S differ, which
    changes no sign here.
    """
    factors, shards, stale = map(coordinated, ("factors", "shards", "stale"))
    assert factors["params_sha256"] == shards["params_sha256"]
    assert factors["bytes"] != shards["bytes"]
    assert stale["params_sha256"] != factors["params_sha256"]


@pytest.mark.parametrize("coordinate", ["factors", "shards", "stale"])
@pytest.mark.parametrize("signal", ["exact", "projection"])
def test_processes_and_virtual_workers_agree_and_resume(coordinate: str, signal: str, tmp_path: Path) -> None:
    order, virtual = CDGraB(coordinate=coordinate, signal=signal, every=1), coordinated(coordinate, signal)
    if signal == "exact":
        processes = trained(order, virtual=False)
        assert processes["params_sha256"] == virtual["params_sha256"]
        assert processes["bytes"] == virtual["bytes"]
    trained(order, epochs=None, steps=8, out=tmp_path)
    assert trained(order, out=tmp_path, resume=True)["params_sha256"] == virtual["params_sha256"]


@pytest.mark.parametrize("signal", ["projection", "last-layer"])
def test_cheap_signals_agree_on_processes(signal: str) -> None:
    """Steps whose sketches share a message, too: 15 steps per epoch, three at a time."""
    order = CDGraB(signal=signal, every=1, sweeps=1)
    virtual, processes = (trained(order, batch=2, epochs=2, virtual=virtual) for virtual in (True, False))
    assert processes["params_sha256"] == virtual["params_sha256"]
    assert processes["bytes"] == virtual["bytes"]


def test_a_last_layer_is_sent_as_its_factors() -> None:
    """Thirty examples of 40 + 10 numbers, and not fifteen differences of 410."""

    def wide() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 10))

    options: dict[str, Any] = {"workers": 3, "steps": 5, "batch": 30, "deterministic": True}
    plain, ordered = (
        eq.train(wide, nn.CrossEntropyLoss(), (INPUTS, TARGETS), order=order, **options).result["bytes"]
        for order in (eq.order.Reshuffle(), CDGraB(signal="last-layer", sweeps=1))
    )
    assert 0 < ordered - plain < 5 * 3 * 2 * (15 * 410 * 4)


def test_traffic_is_in_the_ledger_and_far_below_a_gather_of_gradients() -> None:
    """Two epochs of batches of 6: what is sent beyond plain training, relative to an all-gather of all gradients."""
    d = sum(p.numel() for p in net().parameters())
    plain = eq.train(
        net, nn.CrossEntropyLoss(), (INPUTS, TARGETS), workers=3, epochs=2, batch=6, deterministic=True
    ).result["bytes"]
    gather = 2 * 90 * 2 * d * 4
    for coordinate, most in (("factors", 1.0), ("shards", 0.25), ("stale", 0.25)):
        extra = trained(CDGraB(signal="exact", coordinate=coordinate), epochs=2)["bytes"] - plain
        assert 0 < extra < most * gather, coordinate


def test_shards_send_what_they_say() -> None:
    """A pair: (W - 1) / W of a vector from each worker, W + W^2 numbers summed, and their number."""
    blocks = [sphere(4, 30, seed=w).float() for w in range(3)]

    def loop(comm: Any) -> int:
        order = bound(CDGraB(signal="exact", coordinate="shards"), 4, comm)
        visit(order, blocks[comm.rank], 0, 2)
        return comm.ledger.bytes

    header = 8 * 2 * 3
    vector = 20 * 4 * 3
    numbers = 2 * 2 * (3 + 9) * 8
    assert sum(eq.spawn(loop, 3, virtual=True)) == 2 * (header + vector + numbers)


def test_workers_with_different_signs_are_detected() -> None:
    def loop(comm: Any) -> None:
        order = bound(CDGraB(signal="exact"), 6, comm)
        visit(order, sphere(6, 3, seed=comm.rank), 0, 2)
        if comm.rank == 1:
            order.digest = "something else"
        order.epoch(1)

    with pytest.raises(WorkerError, match="worker 1 computed other signs than worker 0"):
        eq.spawn(loop, 2, virtual=True)


def test_total_steps_is_refused() -> None:
    from equipoise.core.errors import UserError

    with pytest.raises(UserError, match="CDGraB needs all workers"):
        trained(CDGraB(signal="exact"), period=eq.period.TotalSteps(), sync=eq.sync.PeriodicAverage())


def test_stale_signs_change_the_sum_by_all_that_was_signed() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 5)))
    terms = np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])

    def work(comm: Any) -> tuple[np.ndarray, np.ndarray]:
        total = torch.arange(5.0, dtype=torch.float64)
        signed = by_stale(comm, total, Rows(rows[comm.rank].clone(), [1] * 4), terms, lambda p, s: 1 if p <= 0 else -1)
        return total.numpy(), signed.signs

    results = eq.spawn(work, 2, virtual=True)
    expected = np.arange(5.0) + sum(signs @ terms @ rows[w].numpy() for w, (_, signs) in enumerate(results))
    for total, _ in results:
        np.testing.assert_allclose(total, expected, atol=1e-12)


def test_differences_that_wait_are_signed_when_the_epoch_ends() -> None:
    waiting: list[int] = []

    class Spy(CDGraB):
        def end_epoch(self, total: torch.Tensor | None) -> TermSigns:
            count = sum(len(rows) for rows in self.pending)
            signed = super().end_epoch(total)
            assert len(signed.signs) == count
            assert not self.pending
            waiting.append(count)
            return signed

    x = torch.randn(54, 3)
    data = (x, (x.sum(1) > 0).long())
    eq.train(
        nn.Linear(3, 2),
        nn.CrossEntropyLoss(),
        data,
        workers=2,
        epochs=2,
        batch=2,
        order=Spy(signal="last-layer", every=1, sweeps=1),
    )
    assert max(waiting) > 0, "nothing waited: the test says nothing"
