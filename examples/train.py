"""Let Equipoise run the loop: one choice per axis as keyword arguments of `eq.train`.

    python examples/train.py

Eight virtual workers train on label-skewed data on a ring. The run folder holds events, checkpoints and the result.
"""

import torch
from torch import nn

import equipoise as eq

torch.manual_seed(0)
inputs = torch.randn(2048, 10)
labels = (inputs @ torch.randn(10, 3)).argmax(1)
train, test = (inputs[:1536], labels[:1536]), (inputs[1536:], labels[1536:])

if __name__ == "__main__":
    run = eq.train(
        nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)),
        nn.CrossEntropyLoss(),
        train,
        test=test,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        workers=8,
        epochs=4,
        partition=eq.partition.Dirichlet(alpha=0.3),
        order=eq.order.Reshuffle(),
        batch=16,
        sync=eq.sync.DSGT(topology=eq.topology.Ring()),
        out="runs/example",
    )
    mean = run.result["models"]["mean"]
    print(f"test accuracy of the mean model {mean['accuracy']:.2f}, {run.result['bytes']:,} bytes sent")
    print(eq.cite(run))
