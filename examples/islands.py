"""Two islands of two processes: FSDP inside an island, DiLoCo between them.

    python examples/islands.py                             # four local processes
    torchrun --nproc-per-node 4 examples/islands.py        # the processes of torchrun, on any number of hosts

Only the mesh differs from a loop whose workers are single processes.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq

torch.manual_seed(0)
inputs = torch.randn(1024, 10)
labels = (inputs @ torch.randn(10, 3)).argmax(1)
data = TensorDataset(inputs, labels)


def main(process):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "inside"))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    fully_shard(model, mesh=mesh["inside"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = eq.Sampler(data, batch=32, mesh=mesh)  # 32 examples for an island, 16 for each of its ranks
    loader = DataLoader(data, batch_sampler=sampler)
    with eq.attach(model, optimizer, sync=eq.sync.DiLoCo(), period=4, sampler=sampler, mesh=mesh) as together:
        for _ in range(5):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        accuracy = together.evaluate(data, nn.functional.cross_entropy)["mean"]["accuracy"]
        weights = together.model_state("mean")  # all of the model, on every process
    return accuracy, together.clock.rounds, weights["0.weight"].shape


if __name__ == "__main__":
    accuracy, rounds, shape = eq.spawn(main, workers=4)[0]
    print(f"accuracy of the mean model {accuracy:.2f} after {rounds} rounds, first weight {tuple(shape)}")
