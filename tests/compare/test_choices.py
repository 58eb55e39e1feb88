"""`eq.compare`: runs of `eq.train`, ranked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError

INPUTS = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
DATA = (INPUTS, INPUTS[:, :3].argmax(1))
CLUSTER = eq.Cluster([1000.0] * 2, eq.Link("10 kbit", "50 ms"))
CHOICES: dict[str, dict[str, Any]] = {"every step": {}, "every 8": {"period": 8}}


def net() -> nn.Module:
    return nn.Linear(5, 3)


def test_choices_are_ranked_by_the_time_to_the_target(tmp_path: Path) -> None:
    how: dict[str, Any] = {"workers": 2, "cluster": CLUSTER, "batch": 4, "epochs": 8}
    found = eq.compare(net, nn.CrossEntropyLoss(), DATA, CHOICES, seeds=2, until="accuracy=0.8", out=tmp_path, **how)
    assert found.best == "every 8"
    assert found.verdict.startswith("every 8 wins: accuracy=0.8 in ")
    assert [len(runs) for runs in found.runs.values()] == [2, 2]
    for seed in range(2):
        alone = eq.train(
            net, nn.CrossEntropyLoss(), DATA, seed=seed, until="accuracy=0.8", period=8, evaluate_every=0.25, **how
        )
        run = found.runs["every 8"][seed]
        assert run.result["params_sha256"] == alone.result["params_sha256"]
        assert run.folder == tmp_path / "every-8" / f"seed-{seed}"
    times = [run.result["reached"]["simulated_seconds"] for run in found.runs["every 8"]]
    assert found.rows[0].time.mean == pytest.approx(sum(times) / 2)
    assert "| 1 | every 8 |" in str(found)
    assert found.verdict in str(found)


def test_without_a_target_the_last_metric_ranks_and_failures_come_last() -> None:
    choices: dict[str, Any] = {"diverges": {"optimizer": lambda p: torch.optim.SGD(p, lr=1e30)}, "learns": {}}
    found = eq.compare(net(), nn.MSELoss(), (INPUTS, INPUTS[:, :3] * 2), choices, seeds=1, epochs=3)
    assert [row.name for row in found.rows] == ["learns", "diverges"]
    assert found.criterion.metric == "loss"
    assert "not finite" in found.rows[1].failure or "nan" in found.rows[1].failure or "inf" in found.rows[1].failure
    assert found.rows[0].metric.mean == found.runs["learns"][0].result["models"]["mean"]["loss"]
    assert found.runs["diverges"] == []


@pytest.mark.parametrize(
    ("choices", "how", "fix"),
    [
        ({}, {}, "nothing to compare"),
        ({"a": {"seed": 1}}, {}, "choice 'a': seed cannot differ"),
        ({"a b": {}, "a-b": {}}, {}, "has the folder of another one"),
        ({"a": {}}, {"seeds": 0}, "seeds = 0"),
        ({"a": {"period": 0}}, {"workers": 2}, "at least 1"),
        ({"a": {}}, {"until": "accuracy"}, "until"),
    ],
)
def test_nonsense_is_refused(choices: Any, how: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        eq.compare(net(), nn.CrossEntropyLoss(), DATA, choices, epochs=1, **{"seeds": 1, **how})


def test_it_is_the_package_too_whichever_comes_first() -> None:
    for first in ("import equipoise.compare.grid", "pass"):
        code = f"{first}\nimport equipoise as eq\nassert callable(eq.compare)\nfrom equipoise.compare.grid import split"
        subprocess.run([sys.executable, "-c", code], check=True)
