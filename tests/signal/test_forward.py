"""Forward mode gives the products of autograd's gradients, for layers with a rule and without."""

from __future__ import annotations

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
from equipoise.signal.replay_view import ReplayView

from . import models


def view_of(signal: eq.signal.Forward, model: nn.Module, inputs: torch.Tensor, passes: int = 1) -> ReplayView:
    model.zero_grad()
    for part in inputs.chunk(passes):
        with signal.watching(model, len(part)):
            (models.loss(model(part)) * len(part) / len(inputs)).backward()
    return signal.view()


@pytest.fixture(params=[*models.CASES, *models.FUSED, "bare"])
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    make, draw = {**models.CASES, **models.FUSED, "bare": (models.Bare, models.vectors(7))}[request.param]
    inputs = draw(6)
    return make().double(), inputs.double() if inputs.is_floating_point() else inputs


def test_products_and_sums_are_those_of_autograd(case: tuple[nn.Module, torch.Tensor]) -> None:
    for passes in (1, 2):
        products_and_sums_are_those_of_autograd(*case, passes)


def products_and_sums_are_those_of_autograd(model: nn.Module, inputs: torch.Tensor, passes: int) -> None:
    rows = models.gradients(model, inputs)
    signal = eq.signal.Forward().bind(Context(current_comm()))
    view = view_of(signal, model, inputs, passes)
    # A sum of gradients, as S is: forward mode includes the row of a padding token, whose gradient backward omits.
    vector = torch.randn(6, dtype=torch.float64) @ rows
    torch.testing.assert_close(view.products(vector), rows @ vector, rtol=1e-9, atol=1e-10)
    assert view.gradient_is_sum
    weights = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 0.5], dtype=torch.float64)
    updated = vector.clone()
    view.add_to(updated, weights)
    torch.testing.assert_close(updated, vector + weights @ rows, rtol=1e-9, atol=1e-10)
    kept = view_from_state(view.take([4, 1]).state())
    torch.testing.assert_close(kept.vectors(torch.eye(2).double()), rows[[4, 1]], rtol=1e-9, atol=1e-10)
    joined = kept.join(view)
    torch.testing.assert_close(joined.products(vector), torch.cat([rows[[4, 1]], rows]) @ vector, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(view.gram(), rows @ rows.T, rtol=1e-9, atol=1e-10)


def test_signs_are_those_of_materialized_gradients_against_the_first_sum(case: tuple[nn.Module, torch.Tensor]) -> None:
    model, inputs = case
    rows = models.gradients(model, inputs)
    view = view_of(eq.signal.Forward().bind(Context(current_comm())), model, inputs)
    terms = np.kron(np.eye(3), [[1.0, -1.0]])
    total = rows.T @ torch.tensor([0.3, -0.2, 0.1, 0.1, -0.3, 0.05], dtype=torch.float64)
    v = torch.from_numpy(terms) @ rows
    signs = torch.where(v @ total <= 0, 1.0, -1.0).double()
    updated = total.clone()
    signed = sign_terms(updated, view, terms, lambda product, square: 1 if product <= 0 else -1)
    assert signed.signs.tolist() == signs.tolist()
    torch.testing.assert_close(updated, total + signs @ v, rtol=1e-9, atol=1e-10)
    assert signed.squares.sum() == pytest.approx(float((signs @ v).pow(2).sum()), rel=1e-6)


def test_dropout_is_repeated_with_the_same_numbers() -> None:
    """Forward mode and autograd through the very masks that the pass drew; training goes on with the same numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.Dropout(0.5), nn.Linear(9, 3)).double()
    inputs, signal = torch.randn(6, 7).double(), eq.signal.Forward().bind(Context(current_comm()))
    torch.manual_seed(5)
    view = view_of(signal, model, inputs)
    following = torch.rand(1)
    vector = torch.randn(view.dimension, dtype=torch.float64)
    products, sums = view.products(vector), view.zeros()
    view.gradient_is_sum = False
    view.add_to(sums, torch.tensor([1.0, 0, 0, -1.0, 0, 0]).double())
    torch.manual_seed(5)
    outputs, rows = model(inputs), []
    for i in range(6):
        gradients = torch.autograd.grad(models.loss(outputs[i : i + 1]), list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in gradients]))
    torch.testing.assert_close(products, torch.stack(rows) @ vector, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(sums, rows[0] - rows[3], rtol=1e-9, atol=1e-10)
    assert torch.equal(torch.rand(1), following)


def test_a_penalty_in_the_loss_is_detected() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(7, 3).double(), torch.randn(6, 7).double()
    signal = eq.signal.Forward().bind(Context(current_comm()))
    with signal.watching(model, 6):
        (models.loss(model(inputs)) + 0.5 * model.weight.pow(2).sum()).backward()
    view = signal.view()
    view.products(torch.randn(view.dimension, dtype=torch.float64))
    assert not view.gradient_is_sum
    sums = view.zeros()
    view.add_to(sums, torch.ones(6).double())
    torch.testing.assert_close(sums, models.gradients(model, inputs).sum(0), rtol=1e-9, atol=1e-10)


def test_what_it_does_not_cover_is_refused() -> None:
    signal = eq.signal.Forward().bind(Context(current_comm()))
    with pytest.raises(UserError, match="mixes the examples"), signal.watching(nn.BatchNorm1d(3), 4):
        pass
    with pytest.raises(UserError, match="gives no norms"):
        eq.order.PairBalance(signal="forward", sign="halving")


@pytest.mark.parametrize("order", [eq.order.PairBalance, eq.order.GraB])
def test_training_a_recurrent_model_with_dropout_in_odd_batches(order: type[eq.order.Order]) -> None:
    torch.manual_seed(1)
    x, y = torch.randint(11, (31, 5)), torch.randint(3, (31,))
    model = models.Recurrent(nn.LSTM(6, 6, batch_first=True), 0.2)
    run = eq.train(model, nn.CrossEntropyLoss(), (x, y), order=order(signal="forward"), batch=7, epochs=3)
    assert run.result["samples"] == 3 * 31
    assert 0 < run.result["health"]["herding"] < 3
