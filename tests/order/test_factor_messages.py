"""CD-GraB from factors: layouts, slices, and the same signs as from materialized differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.order import CDGraB, factor_messages
from equipoise.order.factor_messages import (
    BufferLayout,
    LayerLayout,
    Slices,
    layer_layouts,
    merge_layouts,
    pack_message,
)
from equipoise.signal.factor_view import FactorView
from equipoise.signal.layer_factors import EmbeddingFactors, ExampleGradients, LinearFactors, Span

from .drive import bound

D = 7 * 5 + 5 + 4 * 6 + 3 * 6 + 9 * 4  # all layers below


def drawn(items: int, seed: int, length: int = 3) -> FactorView:
    """One layer of each kind: applied once, and to every token; an embedding; materialized gradients."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers = [
        LinearFactors(Span(0, 35), Span(35, 40), numbers(items, 1, 7), numbers(items, 1, 5)),
        LinearFactors(Span(40, 64), None, numbers(items, length, 4), numbers(items, length, 6)),
        ExampleGradients(Span(64, 82), None, numbers(items, 18)),
        EmbeddingFactors(
            Span(82, 118), None, torch.randint(9, (items, length), generator=generator), numbers(items, length, 4)
        ),
    ]
    scale = torch.rand(items, generator=generator, dtype=torch.float64) + 0.5
    view = FactorView.from_planned(layers, scale, D)
    view.layers = layers
    return view


def layouts(length: int) -> list[LayerLayout]:
    return [
        LayerLayout("linear", 7, 5, True, True, 1),
        LayerLayout("linear", 4, 6, True, False, length),
        LayerLayout("gradient", 18, 1, True, False, 1),
        LayerLayout("embedding", 9, 4, True, False, length),
    ]


def test_a_batch_with_other_layers_than_the_first_is_refused_with_a_way_out() -> None:
    view, layout = drawn(5, 0), BufferLayout(6, 2, layouts(3)[:3])
    with pytest.raises(UserError, match="use --order.coordinate shards"):
        pack_message(layout, view, np.zeros((2, 5)), view.scale)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("longer", [0, 2])
def test_slices_of_all_workers_add_up_to_s(size: int, longer: int) -> None:
    """Products with slices of S add up to those with S, and products of examples are kept, padding or not."""
    view, layout = drawn(5, 0), BufferLayout(6, 2, layouts(3 + longer))
    rows = pack_message(layout, view, np.zeros((2, 5)), view.scale)
    every = [Slices(layout, rank, size) for rank in range(size)]
    assert sum(slices.dimension for slices in every) == D
    weights, products = torch.arange(1.0, 7.0, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    squared = 0.0
    for slices in every:
        own = slices.view(rows, own=True)
        total = torch.zeros(slices.dimension, dtype=torch.float64)
        own.add_to(total, weights)
        products += own.products(total)
        squared += float(total @ total)
    total = view.vector(weights[:5])
    torch.testing.assert_close(products[:5], view.products(total))
    assert float(products[5]) == 0.0
    assert squared == pytest.approx(float(total @ total))
    gram = every[0].view(rows, own=False).gram()
    torch.testing.assert_close(gram[:5, :5], view.gram())


def test_a_merged_layout_holds_the_largest_and_round_trips() -> None:
    one, two = BufferLayout(4, 2, layouts(3)), BufferLayout(2, 3, layouts(5))
    both = merge_layouts([one, two], 2)
    assert (both.items, both.terms, [layer.length for layer in both.layers]) == (4, 3, [1, 5, 1, 5])
    assert BufferLayout.from_dict(both.to_dict()) == both


def test_small_layers_that_are_applied_often_are_sent_as_gradients() -> None:
    images = torch.randn(2, 3, 12, 12)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 5))
    order = eq.order.PairBalance(signal="exact").bind(bound(eq.order.Reshuffle(), 2).context)
    with order.watcher.watching(model, 2):
        nn.functional.cross_entropy(model(images), torch.tensor([0, 1])).backward()
    convolution, linear = layer_layouts(order.watcher.view()) or []
    assert convolution == LayerLayout("gradient", 4 * 27 + 4, 1, True, True, 1)
    assert linear == LayerLayout("linear", 400, 5, True, True, 1)


def signed(coordinate: str, sizes: tuple[int, ...], batch: int, lengths: Any) -> list[list[int]]:
    """Orders after two epochs over fixed factors; `lengths(worker, step)` are tokens of an example."""
    steps = max(-(-n // batch) for n in sizes)

    def loop(comm: Any) -> list[int]:
        n = sizes[comm.rank]
        order = bound(CDGraB(signal="exact", coordinate=coordinate), n, comm)
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
def test_factors_give_the_signs_of_materialized_differences(
    share: bool, sizes: tuple[int, ...], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd batches carry an example over, last ones are short, a worker has nothing: the layout grows, signs agree."""
    monkeypatch.setattr(factor_messages, "_SMALL", 0 if share else 1 << 40)
    orders = signed("factors", sizes, batch, lambda worker, step: 3)
    assert orders == signed("shards", sizes, batch, lambda worker, step: 3)
    assert [sorted(order) for order in orders] == [list(range(n)) for n in sizes]


def test_sentences_of_other_lengths_on_other_workers() -> None:
    def lengths(worker: int, step: int) -> int:
        return 2 + (worker + step) % 3

    assert signed("factors", (8, 8, 8), 2, lengths) == signed("shards", (8, 8, 8), 2, lengths)
