"""A loop with Accelerate on two unequal workers. Start it with: torchrun --nproc-per-node 2 accelerate_loop.py"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.integrations.accelerate import attach, prepare

inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs[:, :4].argmax(1))

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = eq.Sampler(data, partition=eq.partition.IID(speeds=[3, 1]), batch=[12, 4])
loader = DataLoader(data, batch_sampler=sampler)
model, optimizer, loader = prepare(accelerator, model, optimizer, loader)

with attach(accelerator, model, optimizer, sync=eq.sync.SlowMo(), period=8, sampler=sampler) as together:
    # After a stop: accelerator.load_state("runs/accelerate")
    for _ in sampler.epochs(6):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state("runs/accelerate")

accuracy = (model(inputs).argmax(1) == data.tensors[1]).float().mean().item()
accelerator.save_model(model, "runs/accelerate/final")  # the mean of both models, which both workers hold now
if accelerator.is_main_process:
    print(f"accuracy of the mean model {accuracy:.3f} after {together.clock.rounds} rounds")
