"""CD-GraB from factors: forms, slices, and the same signs as from complete differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.order import CDGraB, factors
from equipoise.order.factors import Form, Room, Slices, forms_of, merged, message_of, room_of
from equipoise.signal.factors_of_layer import Lookup, Made, Outer
from equipoise.signal.layers import Layers

from .drive import bound

D = 7 * 5 + 5 + 4 * 6 + 3 * 6 + 9 * 4  # all parts below


def drawn(items: int, seed: int, length: int = 3) -> Layers:
    """One layer of each kind: applied once, and to every word; an embedding; gradients that were made."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = [
        Outer((0, 35), (35, 40), numbers(items, 1, 7), numbers(items, 1, 5)),
        Outer((40, 64), None, numbers(items, length, 4), numbers(items, length, 6)),
        Made((64, 82), None, numbers(items, 18)),
        Lookup((82, 118), None, torch.randint(9, (items, length), generator=generator), numbers(items, length, 4)),
    ]
    scale = torch.rand(items, generator=generator, dtype=torch.float64) + 0.5
    return Layers.of_planned(parts, scale, D) if items == 0 else _viewed(parts, scale)


def _viewed(parts: list[Any], scale: torch.Tensor) -> Layers:
    view = Layers.of_planned(parts, scale, D)
    view.parts = parts
    return view


def forms(length: int) -> list[Form]:
    return [
        Form("outer", 7, 5, True, True, 1),
        Form("outer", 4, 6, True, False, length),
        Form("made", 18, 1, True, False, 1),
        Form("lookup", 9, 4, True, False, length),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("longer", [0, 2])
def test_slices_of_all_workers_are_the_whole(size: int, longer: int) -> None:
    """Products with slices of S add up to those with S, and products of examples are kept, padding or not."""
    view, room = drawn(5, 0), Room(6, 2, forms(3 + longer))
    rows = message_of(room, view, np.zeros((2, 5)), view.scale)
    every = [Slices(room, rank, size) for rank in range(size)]
    assert sum(slices.dimension for slices in every) == D
    weights, found = torch.arange(1.0, 7.0, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    squared = 0.0
    for slices in every:
        mine = slices.view(rows, mine=True)
        total = torch.zeros(slices.dimension, dtype=torch.float64)
        mine.add_to(total, weights)
        found += mine.products(total)
        squared += float(total @ total)
    whole = view.vector(weights[:5])
    torch.testing.assert_close(found[:5], view.products(whole))
    assert float(found[5]) == 0.0
    assert squared == pytest.approx(float(whole @ whole))
    gram = every[0].view(rows, mine=False).gram()
    torch.testing.assert_close(gram[:5, :5], view.gram())


def test_room_grows_to_the_largest_and_round_trips() -> None:
    one, two = Room(4, 2, forms(3)), Room(2, 3, forms(5))
    both = merged([one, two], 2)
    assert (both.items, both.terms, [form.length for form in both.forms]) == (4, 3, [1, 5, 1, 5])
    assert room_of(both.plain()) == both


def test_small_layers_that_are_applied_often_travel_as_gradients() -> None:
    images = torch.randn(2, 3, 12, 12)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 5))
    order = eq.order.PairBalance().bind(bound(eq.order.Reshuffle(), 2).context)
    with order.watcher.watching(model, 2):
        nn.functional.cross_entropy(model(images), torch.tensor([0, 1])).backward()
    made, outer = forms_of(order.watcher.view()) or []
    assert made == Form("made", 4 * 27 + 4, 1, True, True, 1)
    assert outer == Form("outer", 400, 5, True, True, 1)


def signed(coordinate: str, sizes: tuple[int, ...], batch: int, lengths: Any) -> list[list[int]]:
    """Orders after two epochs over fixed factors; `lengths(worker, step)` are words of an example."""
    steps = max(-(-n // batch) for n in sizes)

    def loop(comm: Any) -> list[int]:
        n = sizes[comm.rank]
        order = bound(CDGraB(coordinate=coordinate), n, comm)
        for epoch in range(2):
            positions = order.epoch(epoch)
            for step in range(steps):
                part = positions[step * batch : (step + 1) * batch]
                seed = 1000 * comm.rank + 100 * epoch + step
                view = drawn(len(part), seed, lengths(comm.rank, step)) if len(part) else None
                order.observe(part, view)
        assert order.mode == coordinate
        return order.epoch(2).tolist()

    return eq.spawn(loop, len(sizes), virtual=True)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("sizes", [(12, 12, 12), (13, 7, 0, 9), (6, 6, 6, 6, 6)])
@pytest.mark.parametrize("batch", [2, 5])
def test_factors_decide_as_whole_differences_do(
    share: bool, sizes: tuple[int, ...], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd batches carry an example over, short ones end an epoch, a worker has nothing: the room grows, signs are equal."""
    monkeypatch.setattr(factors, "_SMALL", 0 if share else 1 << 40)
    found = signed("factors", sizes, batch, lambda worker, step: 3)
    assert found == signed("shards", sizes, batch, lambda worker, step: 3)
    assert [sorted(order) for order in found] == [list(range(n)) for n in sizes]


def test_sentences_of_other_lengths_on_other_workers() -> None:
    def lengths(worker: int, step: int) -> int:
        return 2 + (worker + step) % 3

    assert signed("factors", (8, 8, 8), 2, lengths) == signed("shards", (8, 8, 8), 2, lengths)
