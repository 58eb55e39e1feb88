"""A target ends a run: at the same step on every kind of workers, through a resume, and without costing simulated
time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.loop.until import Until
from equipoise.simulate.cluster import Link

X = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(6, 3, generator=torch.Generator().manual_seed(1))).argmax(1)


def train(**options: Any) -> eq.Run:
    choices: dict[str, Any] = {"workers": 3, "batch": 10, "epochs": 30, "evaluate_every": 0.5} | options
    optimizer = choices.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.2))
    torch.manual_seed(0)
    return eq.train(nn.Linear(6, 3), nn.CrossEntropyLoss(), (X, Y), optimizer=optimizer, **choices)


@pytest.mark.parametrize(
    "text", ["accuracy", "accuracy=", "accuracy=x", "error=0.1", "accuracy=nan", "accuracy=85", "=0.5"]
)
def test_nonsense_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(UserError, match="accuracy=0.85|above 0 and at most 1"):
        Until.parse(text)


def test_parsed_and_written_back() -> None:
    assert Until.parse(" accuracy=0.85") == ("accuracy", 0.85)
    assert str(Until.parse("loss=0.30")) == "loss=0.3"
    assert Until("loss", 0.3).met({"local": {"loss": 0.1}, "mean": {"loss": 0.4}, "centre": {"loss": 0.3}})
    assert not Until("accuracy", 0.9).met({"mean": {"loss": 0.1, "accuracy": 0.89}})


def test_ends_at_the_first_evaluation_that_reaches_it(tmp_path: Path) -> None:
    whole = train(out=tmp_path / "whole", epochs=8)
    history = [e for e in whole.events if e["event"] == "evaluate"]
    assert len(history) == 16, "two in each epoch, the last at the end"
    target = history[6]["models"]["mean"]["accuracy"]
    first = next(e for e in history if e["models"]["mean"]["accuracy"] >= target)
    run = train(out=tmp_path / "run", until=f"accuracy={target}")
    reached = run.result["reached"]
    assert (reached["metric"], reached["target"]) == ("accuracy", target)
    assert reached["step"] == run.result["steps"] == first["step"]
    assert reached["samples"] == run.result["samples"] == 240 * first["step"] // 8
    assert reached["bytes"] == run.result["bytes"]
    assert reached["rounds"] == run.result["rounds"]
    assert reached["simulated_seconds"] is None
    assert whole.result["reached"] is None


def test_at_the_very_end_and_never() -> None:
    run = train(epochs=1, evaluate_every=5, until="loss=2")
    assert run.result["reached"]["step"] == run.result["steps"] == 8
    assert train(epochs=1, until="loss=0.0001").result["reached"] is None


@pytest.mark.parametrize("period", [1, 4])
def test_processes_agree_with_virtual_workers(period: int) -> None:
    virtual, real = (
        train(until="loss=0.5", period=period, virtual=v, deterministic=True).result["reached"] for v in (True, False)
    )
    for one in (virtual, real):
        one.pop("seconds")
    assert virtual == real
    assert virtual["step"] > 8


def test_workers_at_their_own_pace() -> None:
    cluster = eq.Cluster([1000.0, 1000.0, 4000.0])
    run = train(until="loss=0.6", period=eq.period.TotalSteps(4), sync=eq.sync.EASGD(pull=0.5), cluster=cluster)
    assert run.result["reached"]["simulated_seconds"] <= run.result["simulated_seconds"]


def test_evaluations_cost_no_simulated_time() -> None:
    cluster = eq.Cluster([1000.0, 500.0, 250.0], Link(1e6, 0.01))
    often, rarely = (train(epochs=2, evaluate_every=e, cluster=cluster).result for e in (0.125, 2))
    assert often["simulated_seconds"] == rarely["simulated_seconds"]
    assert often["params_sha256"] == rarely["params_sha256"]


def test_a_resumed_run_ends_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    undisturbed = train(until="loss=0.5").result
    folder = tmp_path / "run"
    train(epochs=1.5, until="loss=0.5", out=folder, checkpoint_every=3)
    again = train(until="loss=0.5", out=folder, resume=True).result
    assert again["params_sha256"] == undisturbed["params_sha256"]
    assert again["reached"] | {"seconds": 0} == undisturbed["reached"] | {"seconds": 0}
    # Killed after the last checkpoint and before the result: the target stays reached, and no step is taken.
    assert train(until="loss=0.5", out=folder, resume=True).result["steps"] == undisturbed["steps"]
    # Another target goes on.
    assert train(until="loss=0.45", out=folder, resume=True).result["steps"] > undisturbed["steps"]


def test_accuracy_of_a_regression_is_refused() -> None:
    with pytest.raises(UserError, match="accuracy is not measured on this data; known: loss"):
        eq.train(nn.Linear(6, 1), nn.MSELoss(), (X, X[:, :1]), workers=2, epochs=2, until="accuracy=0.5")
