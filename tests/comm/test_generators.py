"""Random numbers: every worker has streams of its own, the same on virtual workers as on processes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from equipoise.comm import barrier
from equipoise.core.random import rng_state, seed_worker, set_rng_state

from .workers import both, run


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def seeded(comm: Any) -> list[tuple[float, float, float]]:
    """Draws with hand-overs in between: unequal numbers of draws must not shift another worker's stream."""
    seed_worker(3, comm.rank)
    draws = []
    for turn in range(3):
        draws += [draw() for _ in range(1 + (comm.rank + turn) % 3)]
        comm.sum(torch.ones(1))
        barrier(comm)
        comm.counter("x", 1)
        peer = comm.rank ^ 1
        comm.exchange({peer: torch.ones(1)}, {peer: torch.empty(1)}).wait()
    return draws


def test_streams_are_those_of_a_worker_alone() -> None:
    virtual, processes = run(seeded, 4, True), run(seeded, 4, False)
    assert virtual == processes
    kept = rng_state()
    try:
        for rank in range(4):
            seed_worker(3, rank)
            assert virtual[rank] == [draw() for _ in range(len(virtual[rank]))]
    finally:
        set_rng_state(kept)


def test_streams_of_workers_and_of_seeds_differ() -> None:
    kept = rng_state()
    try:
        draws = set()
        for seed in range(3):
            for rank in range(5):
                seed_worker(seed, rank)
                draws.update(draw())
        assert len(draws) == 3 * 5 * 3
    finally:
        set_rng_state(kept)


@both
def test_unseeded_workers_begin_where_the_launcher_stood(virtual: bool) -> None:
    """Whatever another worker drew before: as forked processes do."""
    kept = rng_state()
    try:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        expected = [draw() for _ in range(3)]
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)

        def work(comm: Any) -> list[Any]:
            draws = [draw()]
            comm.sum(torch.ones(1))
            draws.append(draw())
            barrier(comm)
            return [*draws, draw()]

        assert run(work, 3, virtual) == [expected] * 3
        assert draw() == expected[0], "and the launcher's own generators have not moved"
    finally:
        set_rng_state(kept)


def test_the_launchers_generators_are_its_own_objects_afterwards() -> None:
    kept = np.random.get_bit_generator()
    run(lambda comm: np.random.seed(comm.rank), 2, True)
    assert np.random.get_bit_generator() is kept


def test_a_state_round_trip() -> None:
    kept = rng_state()
    try:
        state = rng_state()
        first = draw()
        set_rng_state(state)
        assert draw() == first
    finally:
        set_rng_state(kept)


@both
def test_dropout_differs_between_workers_and_repeats(virtual: bool) -> None:
    def work(comm: Any) -> list[float]:
        seed_worker(0, comm.rank)
        layer = torch.nn.Dropout(0.5)
        first = layer(torch.ones(32))
        comm.sum(torch.ones(1))
        return torch.cat([first, layer(torch.ones(32))]).tolist()

    one, two = run(work, 3, virtual), run(work, 3, virtual)
    assert one == two
    assert len({tuple(mask) for mask in one}) == 3
