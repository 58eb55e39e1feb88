"""Compare three choices on a described cluster: simulated seconds until the loss reaches a target.

    python examples/compare.py

`equipoise compare` does the same from the command line, in parallel and with a report.
"""

import torch
from torch import nn

import equipoise as eq

torch.manual_seed(0)
inputs = torch.randn(1024, 10)
data = (inputs, inputs @ torch.randn(10, 1))

# One straggler, and links on which a message takes about as long as a step.
cluster = eq.Cluster([250.0, 1000.0, 1000.0, 1000.0], eq.Link("1 Mbit", "5 ms"))
choices = {
    "all-reduce": {"sync": eq.sync.AllReduce()},
    "Local SGD, H = 8": {"sync": eq.sync.PeriodicAverage(), "period": 8},
    "Local SGD, H = 8, sizes by speed": {
        "sync": eq.sync.PeriodicAverage(),
        "period": 8,
        "partition": eq.partition.Stratified(speeds=[1, 4, 4, 4]),
        "batch": eq.batch.Proportional(16),
    },
}

if __name__ == "__main__":
    how = {"workers": 4, "cluster": cluster, "until": "loss=0.01", "batch": 16}
    print(eq.compare(nn.Linear(10, 1), nn.MSELoss(), data, choices, seeds=1, **how))
