"""The exact signal gives the per-example gradients that autograd computes one by one."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.order.sign_terms import sign_terms
from equipoise.signal import view_from_state
from equipoise.signal.convolution import ConvolutionFactors
from equipoise.signal.factor_view import FactorView
from equipoise.signal.layer_factors import LinearFactors, Span
from equipoise.signal.layer_rules import idle

from . import models


def watched(model: nn.Module, inputs: torch.Tensor, passes: int = 1) -> FactorView:
    signal = eq.signal.Exact().bind(Context(current_comm()))
    return view_of(signal, model, inputs, passes)


def view_of(signal: eq.signal.Exact, model: nn.Module, inputs: torch.Tensor, passes: int = 1) -> FactorView:
    model.zero_grad()
    for part in inputs.chunk(passes):
        with signal.watching(model, len(part)):
            (models.loss(model(part)) * len(part) / len(inputs)).backward()
    return signal.view()


@pytest.fixture(params=[*models.CASES, *models.FUSED])
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    make, draw = {**models.CASES, **models.FUSED}[request.param]
    inputs = draw(6)
    return make().double(), inputs.double() if inputs.is_floating_point() else inputs


def rows_of(view: FactorView) -> torch.Tensor:
    return torch.stack([view.vector(one) for one in torch.eye(view.items, dtype=view.zeros().dtype)])


def test_vectors_products_and_gram_are_those_of_autograd(case: tuple[nn.Module, torch.Tensor]) -> None:
    model, inputs = case
    rows = models.gradients(model, inputs)
    for passes in (1, 2):
        view = watched(model, inputs, passes)
        assert view.items == 6
        torch.testing.assert_close(rows_of(view), rows, rtol=1e-9, atol=1e-11)
        # Inside regions there are no products: compare outside them.
        outside = torch.ones(view.dimension, dtype=torch.float64)
        for region in view.regions():
            outside[region] = 0
        vector = torch.randn(view.dimension, dtype=torch.float64)
        torch.testing.assert_close(view.products(vector), (rows * outside) @ vector, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(view.gram(), (rows * outside) @ rows.T, rtol=1e-9, atol=1e-11)


def test_every_strategy_gives_the_same(case: tuple[nn.Module, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = case
    rows = models.gradients(model, inputs)
    for strategy in ("ghost", "materialized", "streamed"):
        monkeypatch.setattr(
            "equipoise.signal.factor_view.strategy_costs", lambda *shape, strategy=strategy: {strategy: 0}
        )
        view = watched(model, inputs)
        torch.testing.assert_close(rows_of(view), rows, rtol=1e-9, atol=1e-11)
        check_signs(view, rows, torch.randn(view.dimension, dtype=torch.float64))


def check_signs(view: FactorView, rows: torch.Tensor, total: torch.Tensor, centre: torch.Tensor | None = None) -> None:
    """`sign_terms` against the definition, one materialized vector after the other."""
    terms = np.zeros((3, 6))
    for k in range(3):
        terms[k, 2 * k], terms[k, 2 * k + 1] = 1.0, -1.0
    if centre is not None:
        terms = np.eye(6)
    expected, signs = total.clone(), []
    for term in torch.from_numpy(terms):
        v = term @ rows - (0 if centre is None else centre)
        signs.append(1.0 if expected @ v <= 0 else -1.0)
        expected += signs[-1] * v
    updated = total.clone()
    signed = sign_terms(updated, view, terms, lambda product, square: 1 if product <= 0 else -1, centre)
    assert signed.signs.tolist() == signs
    torch.testing.assert_close(updated, expected, rtol=1e-9, atol=1e-10)
    squares = [
        (term @ rows - (0 if centre is None else centre)).pow(2).sum().item() for term in torch.from_numpy(terms)
    ]
    np.testing.assert_allclose(signed.squares, squares, rtol=1e-9, atol=1e-12)


def test_signs_equal_those_of_materialized_gradients(case: tuple[nn.Module, torch.Tensor]) -> None:
    model, inputs = case
    rows, view = models.gradients(model, inputs), watched(model, inputs)
    # S as long as the terms, in their span: then the signs of the first decide those of the others.
    total = rows.T @ torch.tensor([0.3, -0.2, 0.1, 0.1, -0.3, 0.05], dtype=torch.float64)
    check_signs(view, rows, total)
    check_signs(view, rows, total, centre=rows.mean(0))


def test_a_view_survives_what_comes_after_it(case: tuple[nn.Module, torch.Tensor]) -> None:
    """Carried over a batch and through a checkpoint, then joined with the next batch."""
    model, inputs = case
    rows = models.gradients(model, inputs)
    signal = eq.signal.Exact().bind(Context(current_comm()))
    kept = view_from_state(view_of(signal, model, inputs[:2]).take([1]).state())
    later = view_of(signal, model, inputs[2:])
    joined = kept.join(later)
    assert isinstance(joined, FactorView)
    torch.testing.assert_close(rows_of(joined), rows[1:], rtol=1e-9, atol=1e-11)


def test_sentences_of_other_lengths_are_joined() -> None:
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 3)).double()
    short, long = torch.randint(11, (1, 3)), torch.randint(11, (2, 5))
    rows = torch.cat([models.gradients(model, short), models.gradients(model, long)])
    signal = eq.signal.Exact().bind(Context(current_comm()))
    joined = view_of(signal, model, short).take([0]).join(view_of(signal, model, long))
    assert isinstance(joined, FactorView)
    torch.testing.assert_close(rows_of(joined), rows, rtol=1e-9, atol=1e-11)


def test_the_gradient_of_the_batch_saves_half_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """S += 2 F - G, whatever the weights, also with an example that was carried over from the batch before."""
    torch.manual_seed(3)
    monkeypatch.setattr("equipoise.signal.factor_view._AXPY", 0)
    monkeypatch.setattr("equipoise.signal.factor_view._CALL", 0)  # layers of this size would be materialized
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double(), torch.randn(6, 7).double()
    rows = models.gradients(model, inputs)
    signal = eq.signal.Exact().bind(Context(current_comm()))
    carried = view_of(signal, model, inputs[:2]).take([1])
    for view, true in (
        (view_of(signal, model, inputs), rows),
        (carried.join(view_of(signal, model, inputs[2:])), rows[1:]),
    ):
        assert isinstance(view, FactorView)
        assert len(view.summed) == 2
        for weights in (torch.ones(view.items), torch.arange(view.items), torch.randn(view.items).sign()):
            vector = view.zeros()
            view.add_to(vector, weights.double())
            torch.testing.assert_close(vector, weights.double() @ true, rtol=1e-9, atol=1e-11)


def test_half_of_the_product_for_maps_that_are_applied_several_times() -> None:
    """Tokens of the same example have its weight."""
    torch.manual_seed(3)
    factors = LinearFactors(Span(2, 37), None, torch.randn(6, 3, 7).double(), torch.randn(6, 3, 5).double())
    weights = torch.tensor([1.0, -1.0, 1.0, 2.0, 1.0, -1.0]).double()
    expected, vector, known = (torch.zeros(40).double() for _ in range(3))
    factors.add_to(expected, weights)
    factors.add_to(known, torch.ones(6).double())
    factors.add_weight_to(vector, known[2:37], 1.0, torch.tensor([1, 3, 5]), torch.tensor([-2.0, 1.0, -2.0]).double())
    torch.testing.assert_close(vector, expected, rtol=1e-9, atol=1e-11)


def test_a_gradient_that_is_not_the_sum_of_the_examples_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulated before, or a penalty in the loss."""
    monkeypatch.setattr("equipoise.signal.factor_view._CALL", 0)  # layers of this size would be materialized
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double(), torch.randn(6, 7).double()
    signal = eq.signal.Exact().bind(Context(current_comm()))
    assert len(view_of(signal, model, inputs).summed) == 2
    with signal.watching(model, 6):  # on top of what is there
        models.loss(model(inputs)).backward()
    assert not signal.view().summed
    model.zero_grad()
    with signal.watching(model, 6):
        (models.loss(model(inputs)) + 1e-6 * sum(p.pow(2).sum() for p in model.parameters())).backward()
    assert not signal.view().summed


def test_what_no_rule_covers_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, inputs = models.Bare().double(), torch.randn(6, 7, dtype=torch.float64)
    rows = models.gradients(model, inputs)
    rows[:, : 7 + 49] = 0  # the bare parameter and the weight that is used twice
    signal = eq.signal.Exact().bind(Context(current_comm()))
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        view = view_of(signal, model, inputs)
        view_of(signal, model, inputs)
    torch.testing.assert_close(rows_of(view), rows, rtol=1e-9, atol=1e-11)
    assert len(caplog.records) == 1
    assert "bias, one.weight" in caplog.text
    assert "64.4 %" in caplog.text


def test_a_model_without_any_rule_is_refused_with_the_alternative() -> None:
    model, inputs = nn.Bilinear(3, 3, 2), torch.randn(4, 3)
    signal = eq.signal.Exact().bind(Context(current_comm()))
    with pytest.raises(UserError, match=r"--order.signal forward.*--order.signal batch"), signal.watching(model, 4):
        model(inputs, inputs).sum().backward()


def test_a_recurrent_layer_that_cannot_be_repeated_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Dropout between its layers: the dropped numbers are not known."""
    model = models.Recurrent(nn.LSTM(6, 5, 2, batch_first=True, dropout=0.5)).double()
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        view = watched(model, models.tokens(6))
    assert "layer.weight_ih_l0" in caplog.text
    assert not any(span.start >= 66 and span.stop <= view.dimension - 18 for f in view.layers for span in f.spans())


def test_states_that_are_given_to_a_recurrent_layer() -> None:
    torch.manual_seed(0)

    class Carried(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            start = x[:, :1, :3].transpose(0, 1).contiguous()
            return self.layer(x, (start, 2 * start))[0].flatten(1)

    model, inputs = Carried().double(), torch.randn(6, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(rows_of(watched(model, inputs)), models.gradients(model, inputs), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [eq.signal.Exact, eq.signal.Projection, eq.signal.LastLayer])
def test_batch_norm_is_refused_with_reason_and_alternatives(kind: type[eq.signal.Signal]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    signal = kind().bind(Context(current_comm()))
    reason = r"mixes the examples.*GroupNorm.*--order.signal batch"
    with pytest.raises(UserError, match=reason), signal.watching(model, 4):
        pass
    with signal.watching(model.eval(), 4):  # frozen statistics mix nothing
        model(torch.randn(4, 3)).sum().backward()


def test_hooks_are_gone_afterwards() -> None:
    model = nn.Linear(3, 2)
    watched(model, torch.randn(4, 3))
    assert not model._forward_hooks


def test_the_sample_is_the_sum_over_the_examples() -> None:
    """Backward leaves their mean; herding is measured on sums."""
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double(), torch.randn(6, 7).double()
    rows = models.gradients(model, inputs)
    for passes in (1, 2):
        torch.testing.assert_close(watched(model, inputs, passes).sample, rows.sum(0), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("kernel", "dilation"), [((3, 1), (4, 1)), ((1, 3), (1, 4))])
def test_a_dilated_convolution_that_a_pass_left_out_has_gradients_of_zero(
    kernel: tuple[int, int], dilation: tuple[int, int]
) -> None:
    """The image is as large as the kernel reaches: a smaller one has no patch to read."""
    module = nn.Conv2d(2, 4, kernel, dilation=dilation)
    factors = idle(module, (Span(0, 24), Span(24, 28)), 5, torch.zeros(()))
    assert isinstance(factors, ConvolutionFactors)
    assert factors.a.shape[2:] == tuple((size - 1) * far + 1 for size, far in zip(kernel, dilation, strict=True))
    assert torch.equal(factors.materialize().products(torch.ones(28)), torch.zeros(5))
