"""Factors that are no example's gradient are noticed and left out, at once or when they can be noticed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.signal.factor_view import FactorView

from . import models
from .test_exact import rows_of, view_of

EXAMPLES = 6


def fresh() -> eq.signal.Exact:
    return eq.signal.Exact().bind(Context(current_comm()))


class Positions(nn.Module):
    """A table of positions for as many tokens as there are examples, and a layer with the tokens first."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, 4), nn.Embedding(EXAMPLES, 4)
        self.turned, self.head = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
        self.head.weight.data *= scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.position(torch.arange(EXAMPLES))
        return self.head(torch.tanh(self.turned(h.transpose(0, 1)).transpose(0, 1))).mean(1)


def names_of(view: FactorView, model: nn.Module) -> set[str]:
    """The parameters that have a gradient in the view."""
    rows, start, names = rows_of(view).abs().sum(0), 0, set()
    for name, p in model.named_parameters():
        if rows[start : start + p.numel()].any():
            names.add(name)
        start += p.numel()
    return names


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_a_first_dimension_that_is_the_batch_by_coincidence(scale: float, caplog: pytest.LogCaptureFixture) -> None:
    """As many tokens as examples: the sum over examples is right, no part of it is. Behind a head of zeros nothing can
    be seen in the first pass.
    """
    torch.manual_seed(0)
    model, inputs, signal = Positions(scale).double(), torch.randint(11, (EXAMPLES, EXAMPLES)), fresh()
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for number in range(3):
            view = view_of(signal, model, inputs)
            if scale or number == 2:
                assert names_of(view, model) == {"token.weight", "head.weight"}
            if number == 1:  # the third pass is not one of those that are always checked
                nn.init.normal_(model.head.weight)
    rows = models.gradients(model, inputs)
    torch.testing.assert_close(rows_of(view)[:, :44], rows[:, :44], rtol=1e-9, atol=1e-11)
    assert len(caplog.records) == 1
    assert "position.weight, turned.weight, turned.bias" in caplog.text


class TokensFirst(nn.Module):
    """A layer in the middle that has the tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.turned, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x)).transpose(0, 1)
        return self.head(torch.tanh(self.turned(h)).transpose(0, 1)).mean(1)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("examples", [6, 16, 128])
def test_the_mean_gradient_does_not_hide_a_wrong_part(
    examples: int, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In large batches it is most of any sum over half of the examples. Also of a model for one number of them."""
    if not repeats:
        monkeypatch.setattr("equipoise.signal.coverage.resized", lambda *args: None)
    for seed in range(4):
        torch.manual_seed(seed)
        model, inputs = TokensFirst().double(), torch.randn(examples, examples, 4, dtype=torch.float64)
        view = view_of(fresh(), model, inputs)
        assert names_of(view, model) == {"first.weight", "first.bias", "head.weight", "head.bias"}


def normalized() -> nn.Module:
    layers = [nn.Linear(7, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3), nn.Softmax(-1)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1.0])
def test_rounding_is_no_wrong_part(spread: float, autocast: bool) -> None:
    """Examples that are nearly the same differ by rounding, and half precision by more."""
    for seed in range(4):
        torch.manual_seed(seed)
        model, signal = normalized(), fresh()
        inputs = torch.randn(7) + spread * torch.randn(16, 7)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            view = view_of(signal, model, inputs)
        assert names_of(view, model) == {name for name, _ in model.named_parameters()}


class HalfTable(nn.Module):
    """A table in half precision, which only autocast multiplies by anything else."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(7, 6), nn.Linear(6, 3)
        self.register_buffer("table", torch.randn(6, 6).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.first(x)).float() @ self.table)


def test_a_pass_under_autocast_is_repeated_under_it() -> None:
    """Though it is over when the gradients are there."""
    torch.manual_seed(0)
    model, signal = HalfTable(), fresh()
    with signal.watching(model, 16):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(torch.randn(16, 7))
        models.loss(outputs).backward()
    assert signal.coverage is not None
    assert not signal.coverage.summed, "gradients of examples were compared"


class Language(nn.Module):
    """Tokens, with a table of positions, and a layer without a use; its outputs in one of the usual forms."""

    def __init__(self, form: str = "logits") -> None:
        super().__init__()
        self.form = form
        self.token, self.position = nn.Embedding(11, 4), nn.Embedding(EXAMPLES, 4)
        self.norm, self.head, self.idle = nn.LayerNorm(4), nn.Linear(4, 11), nn.Linear(4, 4)

    def hidden(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.token(x) + self.position(torch.arange(x.shape[1]))
        return self.norm(torch.tanh(h if mask is None else mask @ h))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        logits = self.head(self.hidden(x, mask))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.roll(1, 1).flatten())
        forms = {"flat": logits.flatten(0, 1), "loss": loss, "pair": (loss, logits), "turned": logits.transpose(0, 1)}
        return forms.get(self.form, logits)


LOSSES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "logits": lambda outputs, y: nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten()),
    "flat": lambda outputs, y: nn.functional.cross_entropy(outputs, y.flatten()),
    "loss": lambda outputs, y: outputs,
    "pair": lambda outputs, y: outputs[0],
    "turned": lambda outputs, y: nn.functional.cross_entropy(outputs.flatten(0, 1), y.T.flatten()),
}


@pytest.mark.parametrize("form", LOSSES)
def test_as_many_tokens_as_examples_whatever_the_outputs_are(form: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, signal = Language(form).double(), fresh()
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for _ in range(3):
            x = torch.randint(11, (EXAMPLES, EXAMPLES))
            model.zero_grad()
            with signal.watching(model, EXAMPLES):
                LOSSES[form](model(x), x.roll(1, 1)).backward()
            view = signal.view()
    assert names_of(view, model) == {"token.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert len(caplog.records) == 1
    assert "(position.weight)" in caplog.text


def test_a_model_that_cannot_run_without_an_example(caplog: pytest.LogCaptureFixture) -> None:
    """Its mask has as many rows as there are examples. Gradients of examples tell what shapes cannot."""
    torch.manual_seed(0)
    model, x, signal = Language().double(), torch.randint(11, (EXAMPLES, EXAMPLES)), fresh()
    mask = torch.randn(EXAMPLES, EXAMPLES).double().tril()
    with caplog.at_level(logging.WARNING, logger="equipoise"), signal.watching(model, EXAMPLES):
        LOSSES["logits"](model(x, mask), x.roll(1, 1)).backward()
    assert names_of(signal.view(), model) == {"token.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert "(position.weight)" in caplog.text
    assert "could not check" not in caplog.text


def test_what_cannot_be_checked_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A model that is never called itself. One example has no other to be taken for."""
    torch.manual_seed(0)
    model, signal = Language().double(), fresh()
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for count, said in ((1, 0), (EXAMPLES, 1), (EXAMPLES, 1), (EXAMPLES, 1)):
            x = torch.randint(11, (count, count))
            with signal.watching(model, count):
                LOSSES["logits"](model.head(model.hidden(x)), x.roll(1, 1)).backward()
            assert len(caplog.records) == said
    assert "uses token.weight, position.weight, norm.weight, norm.bias, head.weight, head.bias, but" in caplog.text


class Late(nn.Module):
    """A bare parameter that is used from some step on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.bare, self.layer = False, nn.Parameter(torch.ones(7)), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.bare if self.used else x)


def test_a_parameter_that_is_used_later(caplog: pytest.LogCaptureFixture) -> None:
    model, inputs, signal = Late().double(), torch.randn(6, 7, dtype=torch.float64), fresh()
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for number in range(6):
            model.used = number >= 4  # not one of the passes that are always checked
            view = view_of(signal, model, inputs)
    assert len(caplog.records) == 1
    assert "(bare)" in caplog.text
    torch.testing.assert_close(rows_of(view)[:, 7:], models.gradients(model, inputs)[:, 7:], rtol=1e-9, atol=1e-11)


class Turning(nn.Module):
    """A layer that has the examples first, and from some step on the tokens, of which there are as many."""

    def __init__(self) -> None:
        super().__init__()
        self.turned, self.layer, self.head = False, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x.transpose(0, 1)).transpose(0, 1) if self.turned else self.layer(x)
        return self.head(torch.tanh(h)).mean(1)


def test_what_was_right_in_the_first_pass_is_checked_again() -> None:
    torch.manual_seed(3)
    model, inputs, signal = Turning().double(), torch.randn(EXAMPLES, EXAMPLES, 4, dtype=torch.float64), fresh()
    for number in range(1, 5):  # passes 1, 2 and 4 are checked
        model.turned = number > 2
        view = view_of(signal, model, inputs)
        assert names_of(view, model) >= {"head.weight", "head.bias"}
        assert ("layer.weight" in names_of(view, model)) == (number < 4)


@pytest.mark.parametrize("begins", [1, 3])
def test_a_resumed_run_leaves_out_what_it_left_out_before(begins: int, caplog: pytest.LogCaptureFixture) -> None:
    """At once or later, and without a second word: the layers of a run stay the same."""
    torch.manual_seed(3)
    model, inputs, signal = Turning().double(), torch.randn(EXAMPLES, EXAMPLES, 4, dtype=torch.float64), fresh()
    for number in range(1, 5):
        model.turned = number >= begins
        view = view_of(signal, model, inputs)
    layers, resumed = [factors.spans() for factors in view.layers], fresh()
    resumed.load_state_dict(signal.state_dict())
    model.turned = False  # nothing is wrong any more
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        for _ in range(5):  # the passes 5 to 9
            view = view_of(resumed, model, inputs)
            assert names_of(view, model) == {"head.weight", "head.bias"}
            assert [factors.spans() for factors in view.layers] == layers
    assert not caplog.records


class SharedBias(nn.Module):
    """Two layers with one bias, or one layer twice whose weight is frozen."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(7, 7), nn.Linear(7, 7)
        self.two.bias = self.one.bias
        if frozen:
            self.two = self.one
            self.one.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


class SelfAndCross(nn.Module):
    """One after the other, or only one of them."""

    def __init__(self, path: int = 2) -> None:
        super().__init__()
        self.path, self.attention = path, nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention(x, x, x)[0] if self.path != 1 else x
        return (self.attention(h, x, x.tanh())[0] if self.path else h).mean(1)


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = self.layer(torch.tanh(x))
            x = x[0] if isinstance(x, tuple) else x
        return x.flatten(1)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: SharedBias(False), (7,)),
        (lambda: SharedBias(True), (7,)),
        (SelfAndCross, (5, 8)),
        (lambda: Twice(nn.Conv1d(4, 4, 3, padding=1)), (4, 5)),
        (lambda: Twice(nn.Conv1d(4, 4, 3, padding=1, groups=2)), (4, 5)),
        (lambda: Twice(nn.GRU(6, 6, batch_first=True)), (3, 6)),
    ],
    ids=["shared bias", "frozen weight of a layer used twice", "self and cross", "convolution", "groups", "recurrent"],
)
def test_cross_terms_of_whatever_is_shared(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model, inputs = make().double(), torch.randn(6, *shape, dtype=torch.float64)
    rows, view = models.gradients(model, inputs), view_of(fresh(), model, inputs)
    torch.testing.assert_close(rows_of(view), rows, rtol=1e-9, atol=1e-11)
    outside = torch.ones(view.dimension, dtype=torch.float64)
    for region in view.regions():
        assert outside[region].all(), "regions overlap: sums over them would count twice"
        outside[region] = 0
    vector = torch.randn(view.dimension, dtype=torch.float64)
    torch.testing.assert_close(view.products(vector), (rows * outside) @ vector, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(view.gram(), (rows * outside) @ rows.T, rtol=1e-9, atol=1e-11)


class Branches(nn.Module):
    """Two paths of equal shapes, and one that leaves both out."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.path = 0
        self.first, self.second, self.head = layer(), layer(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.unflatten(1, (2, 4)).unsqueeze(2) if isinstance(self.first, nn.Conv2d) else x
        h = [self.first, self.second, nn.Identity()][self.path](h)
        return self.head(torch.tanh(h.flatten(1)))


@pytest.mark.parametrize(
    "layer", [lambda: nn.Linear(8, 8), lambda: nn.LayerNorm(8), lambda: nn.Conv2d(2, 2, (1, 3), padding=(0, 1))]
)
def test_batches_that_take_other_paths(layer: Callable[[], nn.Module]) -> None:
    """An example that is carried over, and joined with a batch that went another way."""
    torch.manual_seed(2)
    model, inputs, signal = Branches(layer).double(), torch.randn(6, 8, dtype=torch.float64), fresh()
    for earlier, later in ((0, 1), (1, 0), (2, 0), (0, 2)):
        model.path = earlier
        rows = models.gradients(model, inputs[:2])
        kept = view_of(signal, model, inputs[:2]).take([1])
        model.path = later
        rows = torch.cat([rows[1:], models.gradients(model, inputs[2:])])
        joined = kept.join(view_of(signal, model, inputs[2:]))
        assert isinstance(joined, FactorView)
        torch.testing.assert_close(rows_of(joined), rows, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(joined.gram(), rows @ rows.T, rtol=1e-9, atol=1e-11)


def test_self_and_cross_attention_in_turn() -> None:
    """Not the same layers: packed in one pass, three of them in the next."""
    torch.manual_seed(2)
    model, inputs, signal = SelfAndCross(0).double(), torch.randn(6, 5, 8, dtype=torch.float64), fresh()
    for earlier, later in ((0, 1), (1, 0)):
        model.path = earlier
        rows = models.gradients(model, inputs[:2])
        kept = view_of(signal, model, inputs[:2])
        model.path = later
        joined = kept.join(view_of(signal, model, inputs[2:]))
        rows = torch.cat([rows, models.gradients(model, inputs[2:])])
        torch.testing.assert_close(rows_of(joined), rows, rtol=1e-9, atol=1e-11)


class Dropped(nn.Module):
    """LayerDrop: layers are left out at random. One of them is used up to three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.again = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.middle = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.attention, self.recurrent = nn.MultiheadAttention(8, 2, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x)).unsqueeze(1)
        layers: list[Callable[[torch.Tensor], torch.Tensor]] = [*self.middle, *[self.norm] * 2, *[self.again] * 3]
        layers += [lambda h: self.attention(h, h, h)[0], lambda h: self.recurrent(h)[0]]
        for layer in layers:
            if not self.training or torch.rand(()) < 0.5:
                h = h + torch.tanh(layer(h))
        return self.head(h.squeeze(1))


@pytest.mark.parametrize(
    "order",
    [
        eq.order.PairBalance(signal="exact"),
        eq.order.CDGraB(signal="exact", coordinate="factors"),
        eq.order.CDGraB(signal="projection"),
    ],
)
def test_layers_that_are_left_out_at_random(order: Any) -> None:
    inputs = torch.randn(42, 6)
    data: Any = (inputs, (inputs[:, :3].sum(1) > 0).long())
    run = eq.train(Dropped, nn.CrossEntropyLoss(), data, workers=2, epochs=3, batch=3, order=order, seed=1)
    assert run.result["samples"] == 3 * 42


def test_every_pass_has_the_same_layers() -> None:
    """Workers exchange factors by their place among the layers."""
    torch.manual_seed(4)
    model, inputs, signal = Dropped().double(), torch.randn(4, 6, dtype=torch.float64), fresh()
    places = set()
    for seed in range(8):
        rows = []
        for batch in inputs.split(1):
            torch.manual_seed(seed)
            rows.append(models.gradients(model, batch))
        torch.manual_seed(seed)
        view = view_of(signal, model, inputs)
        torch.testing.assert_close(rows_of(view), torch.cat(rows), rtol=1e-9, atol=1e-11)
        places.add(tuple((factors.weight, factors.bias) for factors in view.layers))
    assert len(places) == 1


def test_sketches_of_batches_that_take_other_paths() -> None:
    """A layer has its own map and its own columns, whichever others a batch went through."""
    torch.manual_seed(2)
    model, inputs = Branches(lambda: nn.Linear(8, 8)), torch.randn(6, 8)
    count, kronecker = (
        signal.bind(Context(current_comm()))
        for signal in (eq.signal.Projection(kind="count", buckets=1 << 14), eq.signal.Projection())
    )
    views, rows, used = [], [], []
    for path in (0, 1, 0):
        model.path = path
        rows.append(models.gradients(model, inputs))
        views.append(view_of(count, model, inputs))
        used.append(view_of(kronecker, model, inputs).rows.view(6, 3, -1).any(2).any(0).tolist())
    true = torch.cat(rows) @ torch.cat(rows).T
    assert float((views[0].join(views[1]).join(views[2]).gram() - true).norm() / true.norm()) < 0.1
    assert used == [[True, False, True], [False, True, True], [True, False, True]]


def test_a_penalty_in_the_loss_belongs_to_no_example(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first step on, and switched on later: then not even one S contains it."""
    monkeypatch.setattr("equipoise.signal.factor_view._CALL", 0)  # layers of this size would be materialized
    torch.manual_seed(3)
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double(), torch.randn(6, 7).double()
    rows = models.gradients(model, inputs)
    for begins in (0, 2, 5):
        signal = fresh()
        with caplog.at_level(logging.WARNING, logger="equipoise"):
            for number in range(7):
                model.zero_grad()
                with signal.watching(model, 6):
                    penalty = 0.5 * torch.stack([p.pow(2).sum() for p in model.parameters()]).sum()
                    (models.loss(model(inputs)) + (penalty if number >= begins else 0.0)).backward()
                view = signal.view()
                torch.testing.assert_close(view.vector(torch.ones(6).double()), rows.sum(0), rtol=1e-9, atol=1e-11)
                assert bool(view.summed) == (number < begins)
    assert not caplog.records


def penalised(model: Language, names: list[str], begins: int) -> None:
    """Passes of a model that returns its loss: of such a model only sums can be compared, which contain a penalty."""
    signal, x = fresh(), torch.randint(11, (EXAMPLES, 5))
    for number in range(4):
        model.zero_grad()
        with signal.watching(model, EXAMPLES):
            terms = torch.stack([model.get_parameter(name).add(1).pow(2).sum() for name in names])
            (model(x) + (terms.sum() if number >= begins else 0.0)).backward()


@pytest.mark.parametrize("begins", [0, 3])
def test_a_penalty_that_leaves_no_gradient_is_refused(begins: int) -> None:
    """The order would go on with zeros."""
    torch.manual_seed(0)
    model = Language("loss").double()
    del model.idle
    with pytest.raises(UserError, match=r"such as a penalty: --order"):
        penalised(model, [name for name, _ in model.named_parameters()], begins)


def test_a_penalty_on_some_of_the_parameters_is_named_as_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        penalised(Language("loss").double(), ["head.weight"], 3)
    assert "such as a penalty" in next(r.getMessage() for r in caplog.records if "(head.weight)" in r.getMessage())


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_one_penalised_layer_makes_all_gradients_suspect(layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the view in which it begins, and from then on."""
    monkeypatch.setattr("equipoise.signal.factor_view._CALL", 0)  # layers of this size would be materialized
    torch.manual_seed(3)
    layers = [nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3)]
    model, inputs = nn.Sequential(*layers).double(), torch.randn(6, 7).double()
    for begins in (0, 1, 2, 3):
        signal = fresh()
        for number in range(5):
            model.zero_grad()
            with signal.watching(model, 6):
                penalty = 0.5 * model.get_parameter(f"{layer}.weight").pow(2).sum() if number >= begins else 0.0
                (models.loss(model(inputs)) + penalty).backward()
            assert bool(signal.view().summed) == (number < begins)


@pytest.mark.parametrize("row", range(9))
def test_one_penalised_row_is_found_when_it_is_its_turn(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.signal.factor_view._CALL", 0)  # layers of this size would be materialized
    torch.manual_seed(3)
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double(), torch.randn(6, 7).double()
    signal, penalised = fresh(), model.get_parameter("0.weight")
    for _ in range(9):  # as many as rows
        model.zero_grad()
        with signal.watching(model, 6):
            (models.loss(model(inputs)) + 0.5 * penalised[row].pow(2).sum()).backward()
        view = signal.view()
    assert not view.summed
