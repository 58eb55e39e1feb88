"""What examples are compared by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import DataError, UserError
from equipoise.data.features import Given, feature_array
from equipoise.data.source import Source
from equipoise.data.view import DatasetView

X = np.random.default_rng(0).standard_normal((60, 5))


def test_features_from_everywhere(tmp_path: Path) -> None:
    view = Source((torch.from_numpy(X).reshape(60, 5, 1), torch.zeros(60, dtype=torch.int64))).view()
    assert (feature_array(view, "inputs") == X).all()
    np.save(tmp_path / "x.npy", 2 * X)
    assert (feature_array(view, str(tmp_path / "x.npy")) == 2 * X).all()
    assert (feature_array(view, lambda view: torch.from_numpy(3 * X)) == 3 * X).all()
    with pytest.raises(DataError, match="cannot be read"):
        feature_array(view, str(tmp_path / "y.npy"))
    with pytest.raises(UserError, match="takes inputs, bag"):
        feature_array(view, "pixels")
    with pytest.raises(UserError, match="no data"):
        feature_array(DatasetView(60), "inputs")


def test_features_of_a_dataset_without_tensors() -> None:
    class Squares(torch.utils.data.Dataset):
        targets = tuple(range(30))

        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.full((2, 2), float(index)), index

    view = Source(Squares()).view()
    assert (feature_array(view, "inputs") == np.arange(30.0)[:, None]).all()


def test_token_ids_are_counted_and_not_compared() -> None:
    view = Source((torch.tensor([[1, 1, 2], [3, 1, 259]]), torch.tensor([0, 1]))).view()
    with pytest.raises(UserError, match="token ids"):
        feature_array(view, "inputs")
    bag = feature_array(view, "bag")
    assert bag[0, 1] == pytest.approx(2 / np.sqrt(5))
    assert bag[1, 3] == pytest.approx(2 / np.sqrt(5))  # 259 shares a column with 3
    assert np.linalg.norm(bag, axis=1) == pytest.approx([1, 1])


def test_penultimate_layer_and_the_model_left_as_it_was() -> None:
    model = (
        nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2)).double().train()
    )
    view = Source((torch.from_numpy(X), torch.zeros(60, dtype=torch.int64))).view()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rows = feature_array(view, eq.features.penultimate(model, batch=17))
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        wanted = model[:4].eval()(torch.from_numpy(X)).float().numpy()
    assert np.array_equal(rows, wanted)
    with pytest.raises(UserError, match="no linear layer"):
        eq.features.penultimate(nn.ReLU())(view)


def test_given_features_decide_and_name_themselves() -> None:
    labels = np.repeat([0, 1], 30)
    method = eq.partition.Submodular(speeds=[1, 1], features=X)
    noise = np.random.default_rng(9).standard_normal((60, 2))
    by_features = method.divide(noise, labels).blocks[0]
    assert by_features.tolist() == eq.partition.Submodular(speeds=[1, 1]).divide(X, labels).blocks[0].tolist()
    assert by_features.tolist() != eq.partition.Submodular(speeds=[1, 1]).divide(noise, labels).blocks[0].tolist()
    assert method == eq.partition.Submodular(speeds=[1, 1], features=X.copy())
    assert method != eq.partition.Submodular(speeds=[1, 1], features=X + 1)
    assert repr(method) != repr(eq.partition.Submodular(speeds=[1, 1], features=X + 1))


@pytest.mark.parametrize("features", [X, lambda view: X, eq.features.penultimate(nn.Linear(5, 2).double())])
def test_features_of_python_in_a_run_with_a_folder(features: Any, tmp_path: Path) -> None:
    """Workers compare their choices, and a checkpoint keeps them: as text, whatever the features are."""
    data = torch.from_numpy(X), torch.arange(60) % 2
    model, partition = nn.Linear(5, 2).double(), eq.partition.Submodular(features=features)
    for epochs in (1, 2):
        run = eq.train(
            model,
            nn.CrossEntropyLoss(),
            data,
            workers=2,
            epochs=epochs,
            partition=partition,
            out=tmp_path / "run",
            resume=epochs > 1,
        )
    assert run.result["samples"] == 120


def test_features_that_do_not_fit_are_refused() -> None:
    view = Source((torch.from_numpy(X), torch.zeros(60, dtype=torch.int64))).view()
    for rows in (X[:59], np.concatenate([X, X[:1]])):
        with pytest.raises(UserError, match=f"{len(rows)} rows for 60 examples"):
            feature_array(view, Given(rows))
    for bad in (np.nan, np.inf):
        rows = X.copy()
        rows[17, 3], rows[18, 3] = bad, -bad
        with pytest.raises(DataError, match="example 17 holds NaN or infinity"):
            feature_array(view, Given(rows))
    with pytest.raises(UserError, match="give numbers"):
        feature_array(view, Given(np.array(["a"] * 60)))
    huge = np.full((60, 5), 1e308)
    assert (feature_array(view, Given(huge)) == huge).all(), "finite, though their sum is not"


def test_features_of_a_model_that_was_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).double().eval()
    eq.features.penultimate(model)(Source((torch.from_numpy(X), torch.zeros(60))).view())
    assert not model.training
