"""The cheap signals: sketches that keep products on average, the last layer, and gradients of groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.context import Context, WorkerInfo
from equipoise.core.errors import UserError
from equipoise.signal import view_from_state
from equipoise.signal.base import GradientView, Signal
from equipoise.signal.rows import Rows

from . import models


def view_of(signal: Signal, model: nn.Module, inputs: torch.Tensor, seed: int = 0, passes: int = 1) -> GradientView:
    bound = signal.bind(Context(current_comm(), worker=WorkerInfo(seed=seed)))
    model.zero_grad()
    for part in inputs.chunk(passes):
        with bound.watching(model, len(part)):
            (models.loss(model(part)) * len(part) / len(inputs)).backward()
    return bound.view()


@pytest.mark.parametrize("name", ["linear", "linear on tokens", "convolution", "embedding", "attention"])
def test_a_projection_keeps_products_on_average(name: str) -> None:
    """Over 300 draws: the Gram matrix of the layers that are sketched, within what is left of the noise."""
    torch.manual_seed(3)
    make, draw = models.CASES[name]
    model, inputs = make(), draw(6)
    grams = [view_of(eq.signal.Projection(width=6), model, inputs, seed).gram() for seed in range(300)]
    mean = torch.stack(grams).mean(0)
    rows = models.gradients(model, inputs)
    if name == "attention":
        rows[:, :16] = 0  # LayerNorm and a small map on every token are left out: few numbers, much work
        rows[:, -64:] = 0
    true = rows @ rows.T
    assert float((mean - true).norm() / true.norm()) < 0.25


@pytest.mark.parametrize("name", ["unequal strides and dilations", "unequal the other way"])
def test_the_sketch_of_a_convolution_without_its_projections_is_the_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identities in their place: outputs in rows, inputs in columns, the bias in the last one."""
    torch.manual_seed(3)
    make, draw = models.CASES[name]
    model, inputs = make(), draw(6)
    weight = model.get_parameter("0.weight")
    q, p = len(weight), weight[0].numel()
    width = p + 1

    def identity(sketch: Any, number: int, side: int, rows: int, like: torch.Tensor) -> torch.Tensor:
        return torch.eye(width)[-1:] if side == 2 else torch.eye(rows, width)

    monkeypatch.setattr("equipoise.signal.projection.KroneckerSketch.matrix", identity)
    view = view_of(eq.signal.Projection(width=width), model, inputs)
    assert isinstance(view, Rows)
    rows = view.rows.view(6, width, width)[:, :q]
    true = models.gradients(model, inputs)
    torch.testing.assert_close(rows[:, :, :p].flatten(1), true[:, : q * p], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows[:, :, p], true[:, q * p :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "linear on tokens", "convolution", "embedding", "partly frozen"])
def test_a_count_sketch_is_unbiased_within_its_variance(name: str) -> None:
    """Over 200 draws of 64 buckets: the mean within 5 of its own deviations, the variance below 11 / buckets."""
    torch.manual_seed(3)
    make, draw = models.CASES[name]
    model, inputs = make(), draw(5)
    sketch = eq.signal.Projection(kind="count", buckets=64)
    grams = torch.stack([view_of(sketch, model, inputs, seed).gram() for seed in range(200)]).double()
    rows = models.gradients(model, inputs).double()
    true, squares = rows @ rows.T, rows.pow(2).sum(1)
    deviation = (grams.var(0) / len(grams)).sqrt()
    assert bool(((grams.mean(0) - true).abs() <= 5 * deviation + 1e-6 * squares.max()).all())
    assert bool((grams.var(0) <= 11 / 64 * squares[:, None] * squares[None] + 1e-9).all())


def test_a_count_sketch_of_words_goes_by_a_hash() -> None:
    """The same token has the same bucket: gradients of one token alone in its bucket have exact products."""
    model, tokens = nn.Embedding(11, 4), torch.full((3, 1), 7)
    view = view_of(eq.signal.Projection(kind="count", buckets=4096), model, tokens)
    rows = models.gradients(model, tokens)
    torch.testing.assert_close(view.gram(), rows @ rows.T, rtol=1e-4, atol=1e-6)


def test_a_count_sketch_balances_an_order() -> None:
    """Ten numbers a gradient in a sketch of many more: the order is balanced nearly as by all of it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 4, generator=generator)
    order = eq.order.PairBalance(signal="count-sketch")
    run = eq.train(nn.Linear(4, 2), nn.MSELoss(), (x, x[:, :2] ** 2), order=order, batch=16, epochs=8)
    assert run.result["health"]["herding"] < 0.7


def test_projections_depend_on_the_seed_alone() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Linear(7, 5), torch.randn(6, 7)
    one, two, other = (view_of(eq.signal.Projection(), model, inputs, seed) for seed in (0, 0, 1))
    assert torch.equal(one.gram(), two.gram())
    assert not torch.equal(one.gram(), other.gram())
    split = view_of(eq.signal.Projection(), model, inputs, 0, passes=2)
    torch.testing.assert_close(split.gram(), one.gram())


def test_the_last_layer_is_exact() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)), torch.randn(6, 7)
    rows = models.gradients(model, inputs)[:, 7 * 9 + 9 :]
    for passes in (1, 3):
        view = view_of(eq.signal.LastLayer(), model, inputs, passes=passes)
        torch.testing.assert_close(view.gram(), rows @ rows.T)
        torch.testing.assert_close(view.vectors(torch.eye(6)), rows)
        assert view_from_state(view.state()).items == 6


@pytest.mark.parametrize("outputs", [3, 30])
@pytest.mark.parametrize("tokens", [False, True])
def test_the_sketch_of_the_last_layer_has_its_smaller_side(outputs: int, tokens: bool) -> None:
    """Unprojected, it is dL/dy (1, a)' if the outputs are fewer, else the gradient of (1, M) in W (a + M a + m)."""
    torch.manual_seed(3)
    head, below = nn.Linear(5, outputs), nn.Sequential(nn.Linear(7, 5), nn.Tanh())
    inputs = torch.randn(6, 4, 7) if tokens else torch.randn(6, 7)
    inserted = nn.Linear(5, 5)
    nn.init.zeros_(inserted.weight), nn.init.zeros_(inserted.bias)

    def bypassed(x: torch.Tensor) -> torch.Tensor:
        return head(below(x) + inserted(below(x)))

    layer = head if outputs == 3 else inserted
    expected = []
    for row in inputs:
        weight, bias = torch.autograd.grad(models.loss(bypassed(row[None])), [layer.weight, layer.bias])
        expected.append(torch.cat([bias[:, None], weight], 1).flatten())
    for passes in (1, 2):
        view = view_of(eq.signal.LastLayer(width=5, sketched=True), nn.Sequential(below, head), inputs, passes=passes)
        torch.testing.assert_close(view.vectors(torch.eye(6)), torch.stack(expected), rtol=1e-4, atol=1e-6)
    short = view_of(eq.signal.LastLayer(width=2, sketched=True), nn.Sequential(below, head), inputs)
    assert short.dimension == min(5, outputs) * 3


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("outputs", [3, 30])
def test_a_last_layer_that_is_computed_again_keeps_its_gradient(outputs: int, reentrant: bool) -> None:
    torch.manual_seed(3)
    below, head, inputs = nn.Linear(7, 5), nn.Linear(5, outputs), torch.randn(6, 7)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.head = below, head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(nn.Sequential(self.head, nn.Tanh()), self.below(x), use_reentrant=reentrant)

    rows = [
        view_of(eq.signal.LastLayer(sketched=True), model, inputs).vectors(torch.eye(6))
        for model in (Checkpointed(), nn.Sequential(below, head, nn.Tanh()))
    ]
    assert float(rows[0].norm()) > 0
    torch.testing.assert_close(*rows)


@pytest.mark.parametrize("outputs", [3, 30])
def test_what_happens_to_the_tensors_of_a_last_layer_does_not_change_its_sketch(outputs: int) -> None:
    """Logits that are masked in place, and an input that is asked for its gradient: a leaf, or one that keeps it."""
    torch.manual_seed(3)
    head, inputs = nn.Linear(5, outputs), torch.randn(6, 5)

    class Masked(nn.Module):
        def __init__(self, leaf: bool, in_place: bool):
            super().__init__()
            self.head, self.leaf, self.in_place = head, leaf, in_place
            self.inputs: list[torch.Tensor] = []  # of the pass, and of the one that finds out whose they are

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = x.detach().requires_grad_()
            if not self.leaf:
                a = a * 1
                a.retain_grad()
            self.inputs.append(a)
            y = self.head(a)
            if self.in_place:
                y[:, 1] = 2.0
                return y.mul_(3)
            return 3 * torch.cat([y[:, :1], torch.full_like(y[:, 1:2], 2.0), y[:, 2:]], 1)

    rows, gradients = [], []
    for leaf in (False, True):
        for in_place in (False, True):
            model = Masked(leaf, in_place)
            rows.append(view_of(eq.signal.LastLayer(sketched=True), model, inputs).vectors(torch.eye(6)))
            gradients.append(model.inputs[0].grad)
    assert float(rows[0].norm()) > 0
    for row, gradient in zip(rows[1:], gradients[1:], strict=True):
        torch.testing.assert_close(row, rows[0])
        torch.testing.assert_close(gradient, gradients[0])


def test_a_leaf_below_the_last_layer_may_collect_gradients() -> None:
    """Only those of the pass at hand are its own."""
    torch.manual_seed(3)
    head, leaf = nn.Linear(5, 30), torch.randn(6, 5, requires_grad=True)
    signal = eq.signal.LastLayer(sketched=True).bind(Context(current_comm(), worker=WorkerInfo()))
    views = []
    for _ in range(3):
        with signal.watching(head, 6):
            head(leaf).square().sum().backward()
        views.append(signal.view().rows)
    assert torch.equal(views[0], views[1])
    assert torch.equal(views[0], views[2])


def test_a_wide_last_layer_keeps_products_on_average() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Linear(9, 40), torch.randn(5, 9)
    grams = [view_of(eq.signal.LastLayer(width=4, sketched=True), model, inputs, seed).gram() for seed in range(300)]
    rows = models.gradients(model, inputs)
    true = rows @ rows.T
    assert float((torch.stack(grams).mean(0) - true).norm() / true.norm()) < 0.2


def test_a_group_has_the_gradient_of_its_pass() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)), torch.randn(6, 7)
    rows = models.gradients(model.eval(), inputs)
    view = view_of(eq.signal.GroupGradient(2), model, inputs, passes=3)
    assert view.sizes == [2, 2, 2]
    torch.testing.assert_close(view.vectors(torch.eye(3)), torch.stack([rows[i : i + 2].mean(0) for i in (0, 2, 4)]))


def test_the_last_layer_is_left_as_it_was() -> None:
    """Also one that is given a `forward` of its own between passes, and after an error; other calls are not seen."""
    torch.manual_seed(3)
    head, inputs = nn.Linear(5, 3), torch.randn(6, 5)
    signal = eq.signal.LastLayer(sketched=True).bind(Context(current_comm(), worker=WorkerInfo()))
    for own in (False, True):
        if own:
            head.forward = lambda x, plain=head.forward: 2 * plain(x)
        before, expected = dict(vars(head)), head(inputs)
        for _ in range(2):
            with signal.watching(head, 6):
                output = head(inputs)
                output.sum().backward()
            torch.testing.assert_close(output, expected)
            assert vars(head) == before
            head(inputs)
            assert signal.view().items == 6
        with pytest.raises(RuntimeError), signal.watching(head, 6):
            head(inputs).backward()
        assert vars(head) == before
        assert not signal.passes


def test_a_buffer_that_is_filled_again_does_not_change_what_was_seen() -> None:
    torch.manual_seed(3)
    head, inputs = nn.Linear(5, 3), torch.randn(6, 5)
    signal = eq.signal.LastLayer(sketched=True).bind(Context(current_comm(), worker=WorkerInfo()))
    views = []
    for _ in range(2):
        with signal.watching(head, 6):
            head(inputs).sum().backward()
        views.append(signal.view())
    expected = views[0].rows
    inputs.fill_(7.0)
    assert torch.equal(views[1].rows, expected)


class TimeFirst(nn.Module):
    """Tokens first inside, also in the last layer; outputs have the examples first again."""

    def __init__(self, last: bool):
        super().__init__()
        self.embedding, self.inside, self.head = nn.Embedding(11, 4), nn.Linear(4, 4), nn.Linear(4, 11)
        self.last = last

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inside(self.embedding(tokens).transpose(0, 1)))
        return self.head(hidden).transpose(0, 1) if self.last else self.head(hidden.transpose(0, 1))


@pytest.mark.parametrize("tokens", [6, 5, 7])
@pytest.mark.parametrize("sketched", [False, True])
def test_a_last_layer_with_the_tokens_first_is_refused(tokens: int, sketched: bool) -> None:
    """Also where there are as many of them as examples, and the shape says nothing."""
    torch.manual_seed(3)
    inputs = torch.randint(11, (6, tokens))
    assert view_of(eq.signal.LastLayer(sketched=sketched), TimeFirst(last=False), inputs).items == 6
    with pytest.raises(UserError, match="no linear layer with the examples first"):
        view_of(eq.signal.LastLayer(sketched=sketched), TimeFirst(last=True), inputs)


def test_the_last_layer_is_the_last_one_with_the_examples_first() -> None:
    """As with another number of tokens, where the shape tells."""
    torch.manual_seed(3)
    first = nn.Linear(4, 4)
    model = nn.Sequential(nn.Embedding(11, 4), first, TurnedLayer())
    rows = []
    for tokens in (6, 5):
        signal = eq.signal.LastLayer(sketched=True)
        bound = signal.bind(Context(current_comm(), worker=WorkerInfo()))
        with bound.watching(model, 6):
            models.loss(model(torch.arange(6 * tokens).view(6, tokens) % 11)).backward()
        assert bound.watch is not None
        assert bound.watch.modules == [first]
        rows.append(bound.view().rows)
    assert rows[0].shape == rows[1].shape


class TurnedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layer(hidden.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("kind", ["kronecker", "count"])
@pytest.mark.parametrize("examples", [2, 6])
def test_a_sketch_leaves_out_layers_with_the_tokens_first(kind: str, examples: int) -> None:
    """Where there are as many tokens as examples, as where there are more: zeros in their columns."""
    torch.manual_seed(3)
    model, inputs = TimeFirst(last=False), torch.randint(11, (examples, examples))
    bound = eq.signal.Projection(kind=kind).bind(Context(current_comm(), worker=WorkerInfo()))
    with bound.watching(model, examples):
        models.loss(model(inputs)).backward()
    assert bound.turned == {model.inside}
    rows = bound.view().rows
    assert float(rows.norm()) > 0
    if kind == "kronecker":
        layers = list(bound.rules)
        unused = rows.view(examples, len(layers), 64).abs().sum((0, 2)) == 0
        assert [layer for layer, zero in zip(layers, unused, strict=True) if zero] == [model.inside]


class Positions(nn.Module):
    """A table of positions and a map of one vector, which have no examples, in front of the layers that have."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.token, self.head = nn.Embedding(9, 8), nn.Embedding(11, 8), nn.Linear(8, 9)
        self.query, self.map = nn.Parameter(torch.ones(1, 8)), nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        common = self.position(torch.arange(tokens.shape[1])) + self.map(self.query)
        return self.head(torch.tanh(self.token(tokens) + common))


@pytest.mark.parametrize("kind", ["kronecker", "count"])
@pytest.mark.parametrize("examples", [2, 3, 4])
def test_a_sketch_does_not_depend_on_the_batch_of_the_first_pass(kind: str, examples: int) -> None:
    """Workers with batches of other sizes compare their sketches."""
    torch.manual_seed(3)
    model, inputs = Positions(), torch.randint(11, (examples, 3))
    alone = [view_of(eq.signal.Projection(kind=kind), model, one[None]).vectors(torch.eye(1)) for one in inputs]
    together = view_of(eq.signal.Projection(kind=kind), model, inputs).vectors(torch.eye(examples))
    torch.testing.assert_close(torch.cat(alone), together)


class Squeezed(nn.Module):
    """Takes away the dimensions of one number, which is that of the examples too where there is a single one."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolution(x).mean((2, 3), keepdim=True).squeeze())


class Slots(nn.Module):
    """As many rows as there are examples, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.inside = nn.Parameter(torch.ones(6, 4)), TurnedLayer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x + self.slots[: len(x), None])


def test_a_model_with_room_for_its_batch_and_no_more_is_checked() -> None:
    with pytest.raises(UserError, match="no linear layer with the examples first"):
        view_of(eq.signal.LastLayer(sketched=True), Slots(), torch.randn(6, 6, 4))


def test_two_examples_are_not_taken_for_tokens_where_one_would_be_squeezed() -> None:
    torch.manual_seed(3)
    model, inputs = Squeezed(), torch.randn(2, 1, 5, 5)
    projection, exact = (
        each.bind(Context(current_comm(), worker=WorkerInfo())) for each in (eq.signal.Projection(), eq.signal.Exact())
    )
    for bound in (projection, exact, eq.signal.LastLayer().bind(Context(current_comm(), worker=WorkerInfo()))):
        with bound.watching(model, 2):
            models.loss(model(inputs)).backward()
        assert bound.view().items == 2
    assert not projection.turned
    assert not exact.coverage.without


def test_a_model_that_runs_on_no_other_number_of_examples_is_taken_as_it_is() -> None:
    """And the random numbers are those of a run without the check."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Unflatten(0, (2, 3)), nn.Flatten(0, 1), nn.Linear(4, 3))
    inputs, drawn = torch.randn(6, 5), []
    for signal in (None, eq.signal.LastLayer(sketched=True), eq.signal.Projection()):
        torch.manual_seed(4)
        if signal is None:
            model(inputs)
        else:
            assert view_of(signal, model, inputs).items == 6
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
