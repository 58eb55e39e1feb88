"""MLflow: a database in the folder of the run, unless MLFLOW_TRACKING_URI names a server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import Tracker

_EXPERIMENT = "equipoise"


class MLflow(Tracker):
    """A run of its own in RUN/mlflow.db, or the one that the program has begun.

    `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows it.
    """

    def start(self, folder: Path | None, choices: Mapping[str, Any]) -> None:
        import mlflow

        active = mlflow.active_run()
        self.own = active is None
        uri = None
        if self.own and folder is not None and "MLFLOW_TRACKING_URI" not in os.environ:
            uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        if active is not None:
            self.run = active.info.run_id
            return
        experiment = self.client.get_experiment_by_name(_EXPERIMENT)
        number = self.client.create_experiment(_EXPERIMENT) if experiment is None else experiment.experiment_id
        self.run = self.client.create_run(number, run_name=None if folder is None else folder.name).info.run_id
        for name, value in choices.items():
            self.client.log_param(self.run, name, value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.run, [Metric(name, value, now, step) for name, value in values.items()])

    def stop(self) -> None:
        if self.own:
            self.client.set_terminated(self.run)
