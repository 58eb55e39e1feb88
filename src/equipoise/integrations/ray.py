"""Ray Train: what the loop of a `TorchTrainer` calls beside `eq.attach`.

    def train_loop(config):
        model = prepare_model(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sampler = eq.Sampler(data, batch=32)
        loader = prepare_data_loader(DataLoader(data, batch_sampler=sampler))
        with eq.attach(model, optimizer, sampler=sampler, period=8) as together:
            resume(together)
            for epoch in sampler.epochs(10):
                ...
                report(together, {"loss": loss.item()})

Ray starts the processes and joins them to a group of torch.distributed, whose processes are the workers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..checkpoint.weights import save_weights
from ..core.extras import require
from ..loop.attach import attach
from ..loop.sampler import Sampler
from .worker_state import put_back_worker_state, worker_state

require("ray.train.torch", "ray", "equipoise.integrations.ray")

import ray.train  # noqa: E402
import ray.train.torch  # noqa: E402


def prepare_model(model: nn.Module) -> nn.Module:
    """The model on the device that Ray gave this worker; Ray's own function would wrap it in DDP."""
    prepared: nn.Module = ray.train.torch.prepare_model(model, parallel_strategy=None)
    return prepared


def prepare_data_loader(loader: Any, **options: Any) -> Any:
    """`ray.train.torch.prepare_data_loader`, which cannot divide the batches of an `eq.Sampler` once more."""
    if isinstance(loader.batch_sampler, Sampler):
        options["add_dist_sampler"] = False
    return ray.train.torch.prepare_data_loader(loader, **options)


def report(together: attach, metrics: dict[str, Any], *, checkpoint: bool = True, **options: Any) -> None:
    """`ray.train.report` of all workers together: Ray keeps the metrics of the first one, so numbers are averaged.

    The checkpoint has a file for each worker, and `model.pt`: the agreed model, named by `final` of `eq.attach`
    ("mean" if left out). options: of `ray.train.report`.
    """
    metrics = _averaged(together.comm.gather_objects(metrics))
    if not checkpoint:
        ray.train.report(metrics, **options)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, rank = Path(name), together.comm.rank
        torch.save(worker_state(together), folder / f"worker-{rank}.pt")
        agreed = together.model_state(together.final or "mean")
        if rank == 0:
            save_weights(agreed, folder / "model.pt")
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(name), **options)


def resume(together: attach) -> int:
    """Go on from the checkpoint that Ray names, to the same bits; the number of steps that were taken, 0 without one.

    Call it first inside the `with` block. Ray names one when it starts the workers again after a failure.
    """
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        file = Path(folder) / f"worker-{together.comm.rank}.pt"
        put_back_worker_state(
            together, lambda: torch.load(file, map_location="cpu", weights_only=True), str(checkpoint.path)
        )
    return together.clock.step


def _averaged(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The metrics of the first worker, with the mean over all for each float that all have."""
    metrics = dict(told[0])
    for name in metrics:
        values = [row[name] for row in told if isinstance(row.get(name), float)]
        if len(values) == len(told):
            metrics[name] = sum(values) / len(values)
    return metrics
