"""Ray Train starts the workers, keeps the checkpoints, and starts again where a worker was lost.

python examples/ray_train.py
"""

import os

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_loop(config):
    import equipoise as eq
    from equipoise.integrations.ray import prepare_data_loader, prepare_model, report, resume

    torch.manual_seed(0)
    inputs = torch.randn(1024, 10)
    labels = (inputs @ torch.randn(10, 3)).argmax(1)
    data = TensorDataset(inputs, labels)
    model = prepare_model(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = eq.Sampler(data, batch=config["batch"])
    loader = prepare_data_loader(DataLoader(data, batch_sampler=sampler))
    with eq.attach(model, optimizer, sampler=sampler, period=4, deterministic=True, final="mean") as together:
        resume(together)
        for epoch in sampler.epochs(config["epochs"]):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            with together.evaluating("mean") as mean, torch.no_grad():
                accuracy = (mean(inputs).argmax(1) == labels).float().mean().item()
            report(together, {"epoch": epoch, "loss": loss.item(), "accuracy": accuracy})


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"epochs": 5, "batch": [48, 48, 16, 16]},  # a batch size per worker
        scaling_config=ScalingConfig(num_workers=4),
        run_config=RunConfig(
            storage_path=os.path.abspath("ray_results"),  # of several hosts: a folder or bucket that all reach
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    result = trainer.fit()
    print(f"accuracy of the mean model {result.metrics['accuracy']:.2f} after epoch {result.metrics['epoch']}")
    ray.shutdown()
