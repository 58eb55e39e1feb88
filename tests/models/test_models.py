from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from equipoise.config import registry
from equipoise.core.errors import UserError
from equipoise.data import Arrays, LoadedData
from equipoise.models import LSTM, MLP, VGG, LeNet, Logistic, Model, ResNet, Transformer


def made(task: str, shape: tuple[int, ...], outputs: int, tokens: int | None = None, n: int = 6) -> LoadedData:
    torch.manual_seed(1)
    x = torch.randn(n, *shape) if tokens is None else torch.randint(2, tokens, (n, *shape))
    if task == "regress":
        y = torch.randn(n, outputs)
    else:
        y = torch.randint(outputs, (n, *shape) if task == "language" else (n,))
    if tokens is not None and task == "classify":
        x[0, 2:] = 0  # a short sentence, and an empty one
        x[1] = 0
    return LoadedData(Arrays(x, y), Arrays(x, y), task, outputs, shape, tokens)  # type: ignore[arg-type]


DATA = {
    "digits": made("classify", (1, 8, 8), 10),
    "fashion": made("classify", (1, 28, 28), 10),
    "cifar": made("classify", (3, 32, 32), 10),
    "odd": made("classify", (2, 9, 13), 3),
    "small": made("classify", (1, 4, 4), 3),
    "vector": made("classify", (20,), 4),
    "regress": made("regress", (20,), 1),
    "language": made("language", (7,), 11, tokens=11),
    "sentences": made("classify", (7,), 3, tokens=11),
}
IMAGES, TEXT = ("digits", "fashion", "cifar", "odd"), ("language", "sentences")
NUMBERS = (*IMAGES, "small", "vector", "regress")
FITS: list[tuple[Model, tuple[str, ...]]] = [
    (Logistic(), NUMBERS),
    (MLP(), NUMBERS),
    (MLP(hidden=(9, 7)), NUMBERS),
    (MLP(hidden=()), NUMBERS),
    (LeNet(), IMAGES),
    (VGG(), IMAGES),
    (VGG(width=3, stages=5, norm="none", dropout=0.5), IMAGES),
    (ResNet(), IMAGES),
    (ResNet(width=3, norm="group"), IMAGES),
    (LSTM(), TEXT),
    (LSTM(layers=1, dropout=0.5, tied=False), TEXT),
    (Transformer(), TEXT),
    (Transformer(layers=1, dropout=0.5, tied=False), TEXT),
]


def loss_of(net: torch.nn.Module, data: LoadedData) -> torch.Tensor:
    x, y = data.train.batch(np.arange(len(data.train)))
    out = net(x)
    if data.task == "regress":
        assert out.shape == y.shape
        return F.mse_loss(out, y)
    assert out.shape == (*y.shape, data.outputs)
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def size(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("model", "names"), FITS, ids=repr)
def test_forward_and_backward(model: Model, names: tuple[str, ...]) -> None:
    for data in (DATA[name] for name in names):
        torch.manual_seed(0)
        net = model.build(data)
        loss = loss_of(net, data)
        # A fresh model knows nothing; BatchNorm and small images make it a little surer than it should be.
        assert data.task == "regress" or abs(loss.item() - math.log(data.outputs)) < 2
        loss.backward()
        for parameter_name, p in net.named_parameters():
            assert p.grad is not None, (data.shape, parameter_name)
            assert p.grad.isfinite().all(), (data.shape, parameter_name)


@pytest.mark.parametrize(("model", "names"), FITS, ids=repr)
def test_misfits_are_refused_with_the_models_that_fit(model: Model, names: tuple[str, ...]) -> None:
    for name in set(DATA) - set(names):
        with pytest.raises(UserError, match=f"^{registry.name_of(model)} takes .*: use --model ") as caught:
            model.build(DATA[name])
        advice = str(caught.value).split("--model ")[1].split(", or --data")[0]
        fitting = {registry.name_of(m) for m, names in FITS if name in names}
        assert set(advice.replace(" or ", ", ").split(", ")) == fitting, name
        assert "\n" not in str(caught.value)


def test_linear_models_advise_bags_of_words() -> None:
    for model in (Logistic(), MLP()):
        with pytest.raises(UserError, match=r"--data\.features bag"):
            model.build(DATA["sentences"])


def test_every_registered_model_is_there_and_starts_the_same_from_one_seed() -> None:
    assert {registry.name_of(m) for m, _ in FITS} == set(registry.names("model"))
    for model, names in FITS:
        assert eval(repr(model), {type(model).__name__: type(model)}) == model
        nets = []
        for _ in range(2):
            torch.manual_seed(5)
            nets.append(model.build(DATA[names[0]]))
        states = zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True)
        assert all(a.equal(b) for a, b in states)


def test_sizes_known_from_the_papers() -> None:
    assert size(LeNet().build(DATA["cifar"])) == 62_006
    assert size(ResNet(depth=20).build(DATA["cifar"])) == 269_722
    assert size(Logistic().build(DATA["fashion"])) == 7_850


@pytest.mark.parametrize("model", [LSTM(), Transformer()])
def test_tied_weights_are_one_parameter(model: Model) -> None:
    net = model.build(DATA["language"])
    assert net.head.weight is net.embedding.weight
    assert copy.deepcopy(net).head.weight.data_ptr() != net.embedding.weight.data_ptr()
    copied = copy.deepcopy(net)
    assert copied.head.weight is copied.embedding.weight
    untied = type(model)(tied=False).build(DATA["language"])
    assert size(untied) - size(net) == net.embedding.weight.numel()
    assert model.build(DATA["sentences"]).head.weight.shape == (3, model.width)


@pytest.mark.parametrize("model", [LSTM(), Transformer()])
def test_language_models_do_not_see_the_future(model: Model) -> None:
    net = model.build(DATA["language"]).eval()
    x = DATA["language"].train.x
    changed = x.clone()
    changed[:, 4:] = (x[:, 4:] + 1) % 11
    before, after = net(x), net(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("model", [LSTM(), Transformer()])
def test_padding_does_not_change_the_class(model: Model) -> None:
    net = model.build(DATA["sentences"]).eval()
    x = DATA["sentences"].train.x[2:, :4]
    padded = F.pad(x, (0, 3))
    torch.testing.assert_close(net(padded), net(x))


@pytest.mark.parametrize("model", [LeNet(), ResNet(norm="group"), LSTM(), Transformer()])
def test_an_example_does_not_depend_on_its_batch(model: Model) -> None:
    data = DATA["digits" if isinstance(model, (LeNet, ResNet)) else "sentences"]
    net = model.build(data)
    torch.testing.assert_close(net(data.train.x)[2:3], net(data.train.x[2:3]))


def test_bad_options() -> None:
    for build, match in (
        (lambda: ResNet(depth=10), "6n \\+ 2: use 8 or 14"),
        (lambda: ResNet(norm="layer"), "batch, group"),
        (lambda: Transformer(width=64, heads=3), "heads must divide width: use 2 heads"),
        (lambda: MLP(hidden=(8, 0)), "at least 1"),
        (lambda: LSTM(dropout=1.0), "below 1"),
    ):
        with pytest.raises(UserError, match=match):
            build()
