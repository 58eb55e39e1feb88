"""The herding bound over the world size: coordinated by a gather, among neighbours, or not at all.

    python order_gossip.py --json FILE

Fixed unit vectors in 16 and 128 dimensions, 4,096 in total, one pair per worker and step, 9 epochs of pair balance on
virtual workers: the largest norm of a prefix of the sum over workers. In 16 dimensions 4 workers already have more
pairs in flight than an eighth of the dimension, in 128 dimensions 16 have as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import arguments, report

import equipoise as eq
from equipoise.core.context import Context, WorkerInfo
from equipoise.signal import Rows

WORKERS, DIMENSIONS, VECTORS, EPOCHS = (4, 16, 64), (16, 128), 4096, 9
ORDERS: dict[str, Callable[[], eq.order.Order]] = {
    "random": eq.order.Reshuffle,
    "ID-GraB": lambda: eq.order.IDGraB(signal="exact"),
    "Gossip-GraB ring": lambda: eq.order.GossipGraB(signal="exact", pass_on="ring"),
    "Gossip-GraB one-peer": lambda: eq.order.GossipGraB(signal="exact", pass_on="one-peer"),
    "CD-GraB stale": lambda: eq.order.CDGraB(signal="exact", coordinate="stale"),
    "Gossip-GraB relay": lambda: eq.order.GossipGraB(signal="exact"),
    "CD-GraB": lambda: eq.order.CDGraB(signal="exact"),
}


def bound(order: eq.order.Order, blocks: tuple[torch.Tensor, ...]) -> float:
    def loop(comm: Any) -> torch.Tensor:
        mine = blocks[comm.rank]
        own = order.bind(Context(comm, worker=WorkerInfo(comm.rank, comm.size, 0, len(mine))))
        for epoch in range(EPOCHS):
            positions = own.epoch(epoch)
            for start in range(0, len(mine) if own.watches else 0, 2):
                part = positions[start : start + 2]
                own.observe(part, Rows(mine[torch.from_numpy(part)], [1, 1]))
        return mine[torch.from_numpy(own.epoch(EPOCHS))]

    total = torch.stack(eq.spawn(loop, len(blocks), virtual=True)).sum(0)
    return float((total - total.mean(0)).cumsum(0).norm(dim=1).max())


def main() -> None:
    args = arguments(__doc__ or "", seeds=1)
    torch.set_num_threads(1)
    rows: list[tuple[str, float, float | None]] = []
    for d in DIMENSIONS:
        for name, order in ORDERS.items():
            for workers in WORKERS:
                values = []
                for seed in range(args.seeds):
                    drawn = torch.randn(VECTORS, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
                    values.append(bound(order(), (drawn / drawn.norm(dim=1, keepdim=True)).chunk(workers)))
                rows.append((f"{name}, {d} dimensions, {workers} workers", sum(values) / len(values), None))
                print(*rows[-1][:2], flush=True)
    report("Largest prefix norm", rows, args.json)


if __name__ == "__main__":
    main()
