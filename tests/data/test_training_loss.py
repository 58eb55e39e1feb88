"""Batches and outputs of every structure lead to the same loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.data.source import Source
from equipoise.data.training_loss import TrainingLoss, moved

INPUTS = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
LABELS = INPUTS[:, :3].argmax(1)
LOSS = nn.CrossEntropyLoss()


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


class Output:
    def __init__(self, loss: torch.Tensor, logits: torch.Tensor):
        self.loss, self.logits = loss, logits


class Net(nn.Module):
    """Logits, or a loss in one of the forms that models use."""

    def __init__(self, returns: str = "logits"):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.returns = nn.Linear(4, 3), returns

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.linear(x)
        if self.returns == "logits":
            return logits
        assert labels is not None
        loss = LOSS(logits, labels)
        return {
            "scalar": loss,
            "tuple": (loss, logits),
            "dict": {"loss": loss, "logits": logits},
            "output": Output(loss, logits),
        }[self.returns]


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([left, right], 1))


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, kind: str):
        self.kind = kind

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, i: int) -> Any:
        x, y = INPUTS[i], LABELS[i]
        return {
            "pair": (x, y),
            "named": Pair(x, y),
            "dict": {"x": x, "labels": y},
            "nested": ({"x": x}, y),
            "several": (x[:2], x[2:], y),
            "inside": ((x[:2], x[2:]), y),
        }[self.kind]


KINDS = ("pair", "named", "dict", "nested", "several", "inside")


def model_for(kind: str) -> nn.Module:
    return Halves() if kind in ("several", "inside") else Net()


@pytest.mark.parametrize("kind", KINDS)
def test_every_structure_trains_to_the_same_bits(kind: str) -> None:
    run = eq.train(model_for(kind), LOSS, Items(kind), workers=2, epochs=1, batch=4)
    reference = eq.train(Net(), LOSS, (INPUTS, LABELS), workers=2, epochs=1, batch=4)
    assert run.result["params_sha256"] == reference.result["params_sha256"]
    assert run.result["models"]["mean"] == reference.result["models"]["mean"]


@pytest.mark.parametrize("returns", ["scalar", "tuple", "dict", "output"])
@pytest.mark.parametrize("kind", ["pair", "dict"])
def test_a_model_that_returns_its_loss(kind: str, returns: str) -> None:
    batch = Source(Items(kind)).batch(np.arange(6))
    assert torch.equal(TrainingLoss(None)(Net(returns), batch), LOSS(Net()(INPUTS[:6]), LABELS[:6]))


def test_its_loss_and_logits_are_evaluated() -> None:
    run = eq.train(Net("dict"), None, Items("dict"), workers=2, epochs=1, batch=4)
    reference = eq.train(Net(), LOSS, (INPUTS, LABELS), workers=2, epochs=1, batch=4)
    assert run.result["params_sha256"] == reference.result["params_sha256"]
    assert run.result["models"]["mean"] == reference.result["models"]["mean"]


def test_metrics_are_means_over_all_examples() -> None:
    def confidence(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.softmax(1).max(1).values.mean()

    run = eq.train(Net(), LOSS, (INPUTS, LABELS), metrics={"confidence": confidence}, workers=3, epochs=1, batch=4)
    with torch.no_grad():
        expected = confidence(run.model(INPUTS), LABELS)
    assert run.result["models"]["mean"]["confidence"] == pytest.approx(expected.item(), rel=1e-6)


def test_collate_of_the_user() -> None:
    class Ragged(Items):
        def __getitem__(self, i: int) -> Any:
            return list(range(1 + i % 3)), i % 2

    def lengths(items: list[Any]) -> Any:
        return torch.tensor([[float(len(x))] for x, _ in items]), torch.tensor([y for _, y in items])

    run = eq.train(nn.Linear(1, 2), LOSS, Ragged("pair"), collate=lengths, workers=2, epochs=1)
    assert run.result["samples"] == 24
    with pytest.raises(UserError, match="pass collate=FUNCTION"):
        eq.train(nn.Linear(1, 2), LOSS, Ragged("pair"), workers=2, epochs=1)


class Table:
    """As Hugging Face data sets answer: rows of Python numbers, or columns."""

    column_names = ("x", "label")

    def __init__(self, columns: bool):
        self.columns = columns

    def __len__(self) -> int:
        return 24

    def __getitem__(self, key: Any) -> Any:
        return LABELS.tolist() if key == "label" else {"x": INPUTS[key].tolist(), "label": int(LABELS[key])}

    def __getitems__(self, indices: list[int]) -> Any:
        rows = [self[i] for i in indices]
        return {name: [row[name] for row in rows] for name in self.column_names} if self.columns else rows


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_rows_and_columns_of_a_table_become_examples_and_classes(columns: bool) -> None:
    source = Source(Table(columns))
    assert (source.view().labels == LABELS.numpy()).all()
    assert torch.equal(source.batch(np.arange(6))["x"], INPUTS[:6])
    run = eq.train(Net(), LOSS, Table(columns), workers=2, epochs=1, batch=4, partition=eq.partition.Sorted())
    assert run.result["samples"] == 24


def test_a_dict_of_arrays_is_a_data_set() -> None:
    columns = {"labels": LABELS.numpy(), "x": INPUTS.numpy()}
    how: dict[str, Any] = {"workers": 2, "epochs": 1, "batch": 4, "partition": eq.partition.Sorted()}
    run = eq.train(Net(), LOSS, columns, **how)
    reference = eq.train(Net(), LOSS, (INPUTS, LABELS), **how)
    assert run.result["params_sha256"] == reference.result["params_sha256"]
    assert Source({"x": INPUTS, "ids": LABELS}).view().labels is None


def test_several_targets_reach_the_loss_as_they_are() -> None:
    class Both(Items):
        def __getitem__(self, i: int) -> Any:
            return INPUTS[i], [int(LABELS[i]), float(INPUTS[i, 0])]

    def loss(outputs: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
        return LOSS(outputs, targets[0]) + (outputs[:, 0] - targets[1]).square().mean()

    run = eq.train(Net(), loss, Both("pair"), workers=2, epochs=1, batch=4)
    with torch.no_grad():
        expected = loss(run.model(INPUTS), [LABELS, INPUTS[:, 0]])
    assert run.result["models"]["mean"] == {"loss": pytest.approx(expected.item(), rel=1e-5)}


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(INPUTS, LABELS, strict=True))

    def __len__(self) -> int:
        return len(INPUTS)


PAIR = (INPUTS, LABELS)


@pytest.mark.parametrize(
    ("model", "loss", "data", "fix"),
    [
        (Net(), None, Items("pair"), "needs a model that returns its loss"),
        (Net(), LOSS, [{"x": x} for x in INPUTS], "has no targets"),
        (Net(), LOSS, Stream(), "is an IterableDataset, whose examples have no numbers.*list.data.*eq.attach"),
        (Net(), LOSS, zip(INPUTS, LABELS, strict=True), "data of type zip cannot be indexed"),
        (Net(), LOSS, torch.utils.data.DataLoader(Items("pair")), "pass its dataset .loader.dataset., batch=N"),
        (
            Net(),
            LOSS,
            {"train": Items("pair"), "test": Items("pair")},
            "a dict with the entries train, test",
        ),
        (Net(), LOSS, (INPUTS.tolist(), LABELS.tolist()), "are lists: pass tensors or numpy arrays"),
        (Net(), LOSS, (INPUTS.numpy(), np.array(["a"] * 24)), "dtype <U1 holds no numbers"),
        (Net(), LOSS, (INPUTS, np.array(3)), "without axes"),
        (Net(), LOSS, (INPUTS, LABELS[:5]), "different lengths"),
        (Net(), LOSS, (INPUTS.double().numpy(), LABELS), "inputs are torch.float64 and the model is torch.float32"),
        (Net(), LOSS, (INPUTS, LABELS.int()), "targets are torch.int32 .*pass targets.long"),
        (nn.Linear(4, 3), LOSS, Items("several"), r"Linear.forward.*take the inputs of a batch \(2 in order\)"),
        (Net(), LOSS, {"y": INPUTS, "labels": LABELS}, r"Net.forward.*does not take the inputs of a batch \(y\)"),
        (nn.Linear(4, 3), None, PAIR, r"Linear.forward.*does not take the inputs of a batch \(2 in order\)"),
        (Net(), nn.CrossEntropyLoss(reduction="none"), PAIR, r"the loss has the shape \[24\]: return one number"),
        ("net", LOSS, PAIR, "model of type str: pass a torch.nn.Module"),
    ],
)
def test_what_cannot_be_trained_on_says_so_in_a_line(model: Any, loss: Any, data: Any, fix: str) -> None:
    with pytest.raises(UserError, match=fix) as refused:
        eq.train(model, loss, data, epochs=1)
    assert "\n" not in str(refused.value)


def test_other_errors_of_a_model_stay_as_they_are() -> None:
    class Broken(Net):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        eq.train(Broken(), LOSS, PAIR, epochs=1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        eq.train(Net(), LOSS, (INPUTS[:, :2], LABELS), epochs=1)


@pytest.mark.parametrize(("value", "words"), [("much", "type str"), (INPUTS, r"the shape \[24, 4\]")])
def test_a_metric_that_is_no_number_is_named(value: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"the metric 'odd' returned a value of {words}"):
        eq.train(Net(), LOSS, PAIR, metrics={"odd": lambda outputs, targets: value}, epochs=1)


def test_what_every_worker_makes_itself_is_passed_as_a_function() -> None:
    sgd = torch.optim.SGD(Net().parameters(), lr=0.1)
    with pytest.raises(UserError, match="optimizer of type SGD: pass a function: .*lambda p:"):
        eq.train(Net(), LOSS, PAIR, optimizer=sgd)
    with pytest.raises(UserError, match="scheduler of type StepLR: pass a function"):
        eq.train(Net(), LOSS, PAIR, scheduler=torch.optim.lr_scheduler.StepLR(sgd, 1))


def test_moving_keeps_the_structure() -> None:
    batch = {"a": [torch.ones(2)], "b": Pair(torch.ones(1), torch.zeros(1)), "c": "text"}
    there = moved(batch, torch.device("meta"))
    assert there["a"][0].device.type == there["b"].targets.device.type == "meta"
    assert isinstance(there["b"], Pair)
    assert there["c"] == "text"
