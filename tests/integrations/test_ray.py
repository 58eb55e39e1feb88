"""Ray Train on a real local cluster: the bits of virtual workers, also after a worker was killed."""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'equipoise[ray]'")
pytest.importorskip("ray.train.torch", reason="ray[train] is not installed: pip install 'equipoise[ray]'")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]  # Ray's own; its processes start slowly

Report = Callable[[Any, dict[str, Any]], None]


def loop(config: dict[str, Any], prepare: Any, resume: Any, report: Report) -> dict[str, torch.Tensor]:
    """A loop that reports every four steps; the model that the workers agree on."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=generator)
    data = TensorDataset(inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    sampler = eq.Sampler(data, batch=8, seed=5)
    loader = prepare(DataLoader(data, batch_sampler=sampler))
    with eq.attach(model, optimizer, sampler=sampler, period=3, deterministic=True, buffers="average") as together:
        begun = resume(together)
        if config["folder"] is not None and eq.rank() == 0:
            with (Path(config["folder"]) / "starts").open("a") as file:
                file.write(f"{begun} ")
        for _ in sampler.epochs(config["epochs"]):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                step = together.clock.step
                if step % 4 == 0:
                    report(together, {"step": step, "rank": float(eq.rank())})
                if step == config["dies"] and begun == 0 and eq.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        return together.model_state()


def on_ray(config: dict[str, Any]) -> None:
    from equipoise.integrations.ray import prepare_data_loader, report, resume

    loop(config, prepare_data_loader, resume, report)


def virtual(workers: int, epochs: int) -> dict[str, torch.Tensor]:
    config = {"folder": None, "epochs": epochs, "dies": None}

    def main(comm: Any) -> dict[str, torch.Tensor]:
        return loop(config, lambda loader: loader, lambda together: 0, lambda together, metrics: None)

    found: dict[str, torch.Tensor] = eq.spawn(main, workers, virtual=True)[0]
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # of 2 s: how often Ray looks at reports and workers
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_killed_worker_changes_no_bit(cluster: None, tmp_path: Path) -> None:
    trainer = ray.train.torch.TorchTrainer(
        on_ray,
        train_loop_config={"folder": str(tmp_path), "epochs": 2, "dies": 10},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    # In the middle of an epoch of six steps; Ray may not have registered the last checkpoint yet.
    assert (tmp_path / "starts").read_text().split() in (["0", "4"], ["0", "8"])
    assert result.metrics["step"] == 12
    assert result.metrics["rank"] == 0.5  # a mean over workers
    expected = virtual(2, epochs=2)
    with result.checkpoint.as_directory() as saved:
        names = sorted(path.name for path in Path(saved).iterdir() if not path.name.startswith("."))
        assert names == ["model.pt", "worker-0.pt", "worker-1.pt"]
        model = torch.load(Path(saved) / "model.pt", weights_only=True)
    assert all(torch.equal(model[name], expected[name]) for name in expected)


def test_the_example_on_four_workers(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the cluster that runs already, and with its files in an empty folder."""
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "ray_train.py"), run_name="__main__")
    said = re.search(r"accuracy of the mean model ([\d.]+) after epoch (\d)", capsys.readouterr().out)
    assert said is not None
    assert float(said[1]) > 0.8
    assert said[2] == "4"
    assert list((tmp_path / "ray_results").rglob("worker-3.pt"))
