"""A running sum that is passed among neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.order import CDGraB, GossipGraB, IDGraB, PairBalance
from equipoise.order.neighbours import by_gossip, by_relay
from equipoise.signal import Rows
from equipoise.topology import OnePeer, Ring

from .drive import bound, parallel_floor, sphere, visit

WAYS = ("relay", "ring", "one-peer")


def greedy(product: float, square: float) -> int:
    return 1 if product <= 0 else -1


def relayed(vectors: torch.Tensor, workers: int, batch: int, epochs: int) -> list[list[int]]:
    """The definition, with all vectors in one place: worker after worker, upwards and downwards in turn, one S."""
    blocks = vectors.chunk(workers)
    orders = [np.random.default_rng([0, w, 1, 0]).permutation(len(b)).tolist() for w, b in enumerate(blocks)]
    turn = 0
    for _ in range(epochs):
        total = torch.zeros_like(vectors[0])
        placed: list[tuple[list[int], list[int]]] = [([], []) for _ in blocks]
        for start in range(0, len(blocks[0]), batch):
            for w in range(workers) if turn % 2 == 0 else reversed(range(workers)):
                part = orders[w][start : start + batch]
                for a, b in zip(part[::2], part[1::2], strict=True):
                    v = blocks[w][a] - blocks[w][b]
                    plus = bool(total @ v <= 0)
                    total = total + v if plus else total - v
                    placed[w][0].append(a if plus else b)
                    placed[w][1].append(b if plus else a)
            turn += 1
        orders = [front + back[::-1] for front, back in placed]
    return orders


def test_relay_equals_the_definition() -> None:
    vectors = sphere(48, 5)

    def loop(comm: Any) -> list[int]:
        order = bound(GossipGraB(signal="exact"), 16, comm)
        for epoch in range(3):
            visit(order, vectors.chunk(3)[comm.rank], epoch, 4)
        return order.epoch(3).tolist()

    assert eq.spawn(loop, 3, virtual=True) == relayed(vectors, 3, 4, 3)


@pytest.mark.parametrize("topology", [Ring(), OnePeer()], ids=["ring", "one-peer"])
def test_shares_add_up_to_the_sum(topology: Any) -> None:
    """Mixing loses nothing: after every step the shares of all workers sum to all that was signed."""
    steps, workers = 6, 4
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((workers, steps, 4, 5)))
    terms = np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])

    def work(comm: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        total, signed_sum, done = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64), []
        graph = topology.on(workers)
        for step in range(steps):
            mine = rows[comm.rank, step]
            rounds = range(step * graph.cycle, (step + 1) * graph.cycle)
            signed = by_gossip(comm, total, Rows(mine, [1] * 4), terms, greedy, graph, rounds)
            signed_sum = signed_sum + torch.from_numpy(signed.signs @ terms) @ mine
            done.append((total.clone(), signed_sum))
        return done

    for shares in zip(*eq.spawn(work, workers, virtual=True), strict=True):
        torch.testing.assert_close(sum(a for a, _ in shares), sum(b for _, b in shares))


def test_a_cycle_of_one_peer_rounds_is_stale_coordination() -> None:
    """Four workers know S exactly after two rounds: the signs of `stale`, which sums over all workers."""
    vectors = sphere(64, 6)

    def loop(comm: Any) -> tuple[list[int], list[int]]:
        mine = vectors.chunk(4)[comm.rank]
        orders = (GossipGraB(signal="exact", pass_on="one-peer"), CDGraB(signal="exact", coordinate="stale"))
        learned = []
        for order in (bound(order, 16, comm) for order in orders):
            for epoch in range(3):
                visit(order, mine, epoch, 2)
            learned.append(order.epoch(3).tolist())
        return learned[0], learned[1]

    for one, other in eq.spawn(loop, 4, virtual=True):
        assert one == other


def test_the_bound_of_relay_is_flat_and_that_of_gossip_grows() -> None:
    """d = 16, 8 epochs: relay 3 for any number of workers. In flight together, 16 pairs are more than d / 8."""
    vectors = sphere(1024, 16)
    bounds = {
        (way, w): parallel_floor(lambda way=way: GossipGraB(signal="exact", pass_on=way), vectors, w, 8, 4)
        for way, w in (("relay", 2), ("relay", 16), ("ring", 16), ("one-peer", 16))
    }
    alone = parallel_floor(lambda: IDGraB(signal="exact"), vectors, 16, 8, 4)
    assert 2.0 < bounds["relay", 2] < 4.2
    assert 2.0 < bounds["relay", 16] < 4.2
    assert bounds["relay", 16] < 0.8 * bounds["one-peer", 16] < bounds["ring", 16] < 0.8 * alone


def test_one_vector_per_step_whatever_the_batch_and_the_dimension_of_the_model() -> None:
    def sent(pass_on: str, batch: int, workers: int) -> int:
        def loop(comm: Any) -> int:
            order = bound(GossipGraB(signal="exact", pass_on=pass_on), 16, comm)
            visit(order, sphere(16, 5, seed=comm.rank).float(), 0, batch)
            return comm.ledger.bytes

        return sum(eq.spawn(loop, workers, virtual=True))

    for batch in (2, 8):
        steps = 16 // batch
        assert sent("relay", batch, 4) == steps * 3 * 5 * 4
        assert sent("ring", batch, 4) == steps * 4 * 2 * 5 * 4
        assert sent("one-peer", batch, 4) == steps * 4 * 2 * 5 * 4


def test_with_sketches_a_tenth_of_the_bytes_of_factors() -> None:
    x = torch.randn(192, 40, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())

    def bytes_of(order: Any) -> int:
        net = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 2))
        options: dict[str, Any] = {"workers": 3, "epochs": 1, "batch": 32}
        return eq.train(net, nn.CrossEntropyLoss(), data, order=order, **options).result["bytes"]

    plain, factors = bytes_of(eq.order.Reshuffle()), bytes_of(CDGraB(signal="exact", coordinate="factors"))
    assert 0 < bytes_of(GossipGraB(signal="projection")) - plain < (factors - plain) / 10


def test_one_worker_is_pair_balance() -> None:
    vectors = sphere(30, 5)
    for way in WAYS:
        one, other = bound(GossipGraB(signal="exact", pass_on=way), 30), bound(PairBalance(signal="exact"), 30)
        for epoch in range(3):
            visit(one, vectors, epoch, 4)
            visit(other, vectors, epoch, 4)
        assert one.epoch(3).tolist() == other.epoch(3).tolist()


@pytest.mark.parametrize("way", WAYS)
def test_processes_and_virtual_workers_agree_and_resume(way: str, tmp_path: Path) -> None:
    """Unequal blocks: a worker without a pair passes the sum on. Stopped inside the first and the second epoch."""
    x = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))

    def run(**changes: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"workers": 3, "epochs": 3, "batch": 4, "deterministic": True, **changes}
        options["partition"] = eq.partition.IID(speeds=[1, 3, 1])
        order = GossipGraB(signal="projection", pass_on=way)
        return eq.train(net, nn.CrossEntropyLoss(), data, order=order, **options).result

    virtual, processes = run(), run(virtual=False)
    assert virtual["params_sha256"] == processes["params_sha256"]
    assert virtual["bytes"] == processes["bytes"]
    run(epochs=None, steps=5, out=tmp_path)
    run(epochs=None, steps=11, out=tmp_path, resume=True)
    assert run(out=tmp_path, resume=True)["params_sha256"] == virtual["params_sha256"]


def test_whoever_has_the_sum_passes_it_on_without_terms() -> None:
    def work(comm: Any) -> torch.Tensor:
        total = torch.full((3,), 7.0) if comm.rank == 0 else torch.zeros(3)
        by_relay(comm, total, None, np.zeros((0, 0)), greedy, upward=True)
        return total

    assert eq.spawn(work, 3, virtual=True)[-1].tolist() == [7.0, 7.0, 7.0]
