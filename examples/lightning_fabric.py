"""A Fabric loop on two workers: the strategy starts the processes without DDP, and its `attach` is `eq.attach`.

python examples/lightning_fabric.py
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.integrations.lightning import EquipoiseFabricStrategy

torch.manual_seed(0)
inputs = torch.randn(1024, 10)
labels = (inputs @ torch.randn(10, 3)).argmax(1)
data = TensorDataset(inputs, labels)


def main(fabric):
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    sampler = eq.Sampler(data, batch=[48, 16])
    loader = fabric.setup_dataloaders(DataLoader(data, batch_sampler=sampler))
    with fabric.strategy.attach(model, optimizer, sampler=sampler, sync=eq.sync.LGRAWA(), period=4) as together:
        for _ in sampler.epochs(5):
            for x, y in loader:
                optimizer.zero_grad()
                fabric.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
            # The agreed model, and a file for each worker; fabric.load(...) here, first in the block, resumes.
            fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer})
        with together.evaluating("mean"), torch.no_grad():
            return (model(inputs).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    strategy = EquipoiseFabricStrategy(start_method="fork")  # on CPUs: starts at once
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    print(f"accuracy of the mean model {fabric.launch(main):.2f}")
