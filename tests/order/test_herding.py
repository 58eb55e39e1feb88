"""Greedy herding, and the measurement of herding."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.order import Herding, PairBalance
from equipoise.order.herding import greedy_order
from equipoise.order.prefix_norm import random_prefix
from equipoise.signal import Rows

from .drive import bound, largest_prefix, sphere, visit


def test_always_the_example_that_keeps_the_prefix_smallest() -> None:
    vectors = np.random.default_rng(0).standard_normal((12, 3))
    centred, order = vectors - vectors.mean(0), greedy_order(vectors)
    assert sorted(order) == list(range(12))
    prefix = np.zeros(3)
    for place, chosen in enumerate(order):
        left = order[place:]
        assert np.linalg.norm(prefix + centred[chosen]) <= np.linalg.norm(prefix + centred[left], axis=1).min() + 1e-12
        prefix += centred[chosen]


def test_one_epoch_is_enough_and_what_was_not_seen_comes_last() -> None:
    vectors = sphere(300, 8)
    order = bound(Herding(), 300)
    visit(order, vectors, 0, 50)
    assert largest_prefix(vectors[torch.from_numpy(order.epoch(1))]) < 0.35 * largest_prefix(vectors)
    visit(order, vectors, 1, 50, upto=250)
    missed = order.epoch(1)[250:].tolist()
    assert order.epoch(2)[250:].tolist() == missed


def test_too_much_memory_is_refused_with_the_alternative() -> None:
    order = bound(Herding(), 1 << 20)
    with pytest.raises(UserError, match="pair-balance"):
        order.observe(np.array([0]), Rows(torch.zeros(1, 1000), [1]))


@pytest.mark.parametrize("d", [1, 8, 64, 512])
def test_what_a_random_order_is_expected_to_reach(d: int) -> None:
    """Against drawn orders: N = 2048 unit vectors."""
    drawn = np.mean([largest_prefix(sphere(2048, d, seed)) for seed in range(6)])
    assert random_prefix(2048, 1.0, d) == pytest.approx(drawn, rel=0.2)


def test_herding_falls_from_one_to_the_floor() -> None:
    """The measure against the definition, in the first epoch and after twelve."""
    vectors = sphere(2048, 8)
    order = bound(PairBalance(signal="exact"), 2048)
    for epoch in range(13):
        positions = visit(order, vectors, epoch, 8)
        order.epoch(epoch + 1)
        if epoch in (0, 12):
            true = largest_prefix(vectors[torch.from_numpy(positions)])
            assert order.herding == pytest.approx(true / random_prefix(2048, 1.0, 8), rel=0.3)
    assert order.herding < 0.15
    assert order.builder.prefix_norm.dimension == pytest.approx(8, rel=0.3)


def test_herding_of_a_sample_of_the_coordinates_is_that_of_all() -> None:
    """4,096 coordinates, of which 1,024 are sampled: a random order has 1, by the definition."""
    vectors = sphere(256, 4096)
    order = bound(PairBalance(signal="exact"), 256)
    positions = visit(order, vectors, 0, 4)
    assert len(Rows(vectors[:4], [1] * 4).sample) == 1024
    order.epoch(1)
    true = largest_prefix(vectors[torch.from_numpy(positions)]) / random_prefix(256, 1.0, 4096)
    assert order.herding == pytest.approx(true, rel=0.15)


def test_nothing_to_gain_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """As many directions as examples."""
    order, vectors = bound(PairBalance(signal="exact"), 64), sphere(64, 512)
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for epoch in range(3):
            visit(order, vectors, epoch, 16)
    assert [r.message for r in caplog.records if "nothing to gain" in r.message] == [caplog.records[0].message]
    caplog.clear()
    order, vectors = bound(PairBalance(signal="exact"), 512), sphere(512, 8)
    for epoch in range(3):
        visit(order, vectors, epoch, 16)
    assert not caplog.records


def test_one_epoch_only_is_said(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(16, 3)
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        eq.train(
            nn.Linear(3, 1),
            nn.MSELoss(),
            (x, x.sum(1, keepdim=True)),
            order=PairBalance(signal="exact"),
            batch=4,
            epochs=1,
        )
    assert "one epoch" in caplog.text


def test_herding_is_in_the_events_and_in_the_pictures(tmp_path: object) -> None:
    x = torch.randn(64, 3)
    run = eq.train(
        nn.Linear(3, 1),
        nn.MSELoss(),
        (x, x.sum(1, keepdim=True)),
        order=PairBalance(signal="exact"),
        batch=4,
        epochs=4,
        out=tmp_path,
    )
    values = [e["health"]["herding"] for e in run.events if e["event"] == "evaluate"]
    assert len(values) == 4
    assert all(0 < value < 3 for value in values)
    from equipoise.report.curves import streams
    from equipoise.report.runs import load_run

    assert run.folder is not None
    drawn = [line.values for s in streams(load_run(run.folder)) for line in s.lines if line.plot == "Herding"]
    assert drawn == [values]
