"""Numbers of a run in TensorBoard, Weights & Biases and MLflow, and in a tracker of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.observe.tracker import Tracker, chosen_trackers

INPUTS = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
DATA = INPUTS, INPUTS.argmax(1)
LOSS = nn.functional.cross_entropy


class Kept(Tracker):
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.calls: list[str] = []

    def start(self, folder: Path | None, choices: Mapping[str, Any]) -> None:
        self.calls.append("start")
        self.folder, self.choices = folder, dict(choices)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(values)))

    def stop(self) -> None:
        self.calls.append("stop")


def train(folder: Path | None, track: Any) -> Any:
    return eq.train(nn.Linear(3, 3), LOSS, DATA, workers=2, batch=4, epochs=2, log_every=2, out=folder, track=track)


def loop(track: Any, **more: Any) -> list[Any]:
    def main(comm: Any) -> Any:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, log_every=2, track=track, **more) as together:
            for _ in range(4):
                optimizer.zero_grad()
                loss = LOSS(model(DATA[0]), DATA[1])
                loss.backward()
                together.loss = loss.item()
                optimizer.step()
            return together.evaluate(DATA, LOSS)["mean"]["loss"]

    return eq.spawn(main, 2, virtual=True)


def test_train_and_attach_tell_a_tracker_the_same_kinds_of_numbers() -> None:
    by_train, by_attach = Kept(), Kept()
    run = train(None, by_train)
    losses = loop([by_attach])
    for kept in (by_train, by_attach):
        assert kept.calls == ["start", "stop"], "by the first worker alone"
        assert kept.folder is None
        assert kept.choices["sync.name"] == "all-reduce"
        steps = [values for _, values in kept.rows if "loss/train" in values]
        assert {"lr", "samples", "rounds", "bytes"} < set(steps[0])
        assert steps[-1]["bytes"] > steps[0]["bytes"] > 0
        assert "health/consensus" in kept.rows[-1][1]
    assert [step for step, values in by_attach.rows] == [2, 4, 4]
    assert by_train.rows[-1][1]["loss/mean"] == pytest.approx(run.result["models"]["mean"]["loss"])
    assert by_attach.rows[-1][1]["loss/mean"] == losses[0] == losses[1]


def test_a_tracker_is_stopped_where_the_loop_fails() -> None:
    kept = Kept()

    def main(comm: Any) -> None:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, log_every=1, track=kept):
            LOSS(model(DATA[0]), DATA[1]).backward()
            optimizer.step()
            raise KeyError("mine")

    with pytest.raises(KeyError):
        eq.spawn(main, 1)
    assert kept.calls == ["start", "stop"]


def test_unknown_and_missing_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="track = 'tensorbord': did you mean 'tensorboard'"):
        chosen_trackers("tensorbord")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UserError, match=r"^track=wandb needs wandb: pip install 'equipoise\[wandb\]'$"):
        chosen_trackers("wandb")
    assert chosen_trackers(None) == []


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tmp_path / "run", "tensorboard")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert board.Scalars("loss/mean")[-1].value == pytest.approx(run.result["models"]["mean"]["loss"], rel=1e-6)
    assert [event.step for event in board.Scalars("loss/train")] == [2, 4, 6]


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'equipoise[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    loop("wandb", log=tmp_path / "run")
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    written = files[0].read_bytes()
    assert b"loss/train" in written
    assert b"loss/mean" in written


@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_the_folder_of_the_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install 'equipoise[mlflow]'")
    losses = loop("mlflow", log=tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("equipoise").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["sync.name"] == "all-reduce"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss/train")] == [2, 4]
    assert run.data.metrics["loss/mean"] == losses[0]
