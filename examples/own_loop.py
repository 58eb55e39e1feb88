"""Synchronise several workers inside an ordinary PyTorch loop.

    python examples/own_loop.py                            # four local processes
    torchrun --nproc-per-node 4 examples/own_loop.py       # the processes of torchrun, on any number of hosts

Two lines differ from a loop for one worker: the sampler and the `with`.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq

torch.manual_seed(0)
inputs = torch.randn(1024, 10)
labels = (inputs @ torch.randn(10, 3)).argmax(1)
data = TensorDataset(inputs, labels)


def main(worker):
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = eq.Sampler(data, partition=eq.partition.IID(), order=eq.order.Reshuffle(), batch=32)
    loader = DataLoader(data, batch_sampler=sampler)
    with eq.attach(model, optimizer, sync=eq.sync.PeriodicAverage(), period=4) as together:
        for _ in range(5):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        with together.evaluating("mean") as mean, torch.no_grad():
            accuracy = (mean(inputs).argmax(1) == labels).float().mean().item()
        return accuracy, together.clock.rounds


if __name__ == "__main__":
    accuracy, rounds = eq.spawn(main, workers=4)[0]
    print(f"accuracy of the mean model {accuracy:.2f} after {rounds} rounds")
