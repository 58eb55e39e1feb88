"""Training on a device, compared with the CPU: every sync and every wire on a small problem.

- The model after a few steps on virtual workers is that of the CPU to rounding.
- A run that is stopped and resumed ends with the same bits as one that was not. The model has dropout: the random
  generator of the device is part of the checkpoint.
- Two processes give what two virtual workers do, whichever way their messages go.
- Lower precision gives numbers that are finite.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..config import registry
from ..core.device import count_of, module_of, widest
from ..core.random import seed_torch
from ..loop.train import Run, train
from ..sync.all_reduce import AllReduce
from ..sync.d_psgd import DPSGD
from ..sync.periodic_average import PeriodicAverage

STEPS, STOP, WORKERS = 8, 5, 2
TOLERANCE = 2e-3  # of the largest parameter: a GPU rounds products to fewer bits, and steps add up
_CHANGES: dict[str, Any] = {"batch": 8, "seed": 1, "deterministic": True, "log_every": 100, "evaluate_every": 100}


class Check(NamedTuple):
    """One comparison: what, what was found, and what is wrong with it."""

    name: str
    found: str
    problem: str = ""


def plain_model() -> nn.Module:
    seed_torch(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def model_with_dropout() -> nn.Module:
    seed_torch(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 4))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def methods() -> list[tuple[str, dict[str, Any]]]:
    """Every sync, and every wire with an average of models."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for name in registry.names("sync"):
        sync = registry.get("sync", name)()
        rows.append((f"sync {name}", {"sync": sync, "period": 1 if sync.needs().every_step else 2}))
    for name in registry.names("wire"):
        rows.append((f"wire {name}", {"wire": registry.get("wire", name)(), "sync": PeriodicAverage(), "period": 2}))
    return rows


def run(model: Any, device: str | torch.device, **changes: Any) -> Run:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(96, 8, generator=generator)
    y = (x @ torch.randn(8, 4, generator=generator)).argmax(1)
    arguments = {**_CHANGES, "workers": WORKERS, "steps": STEPS, "optimizer": optimizer, "device": device, **changes}
    return train(model, nn.CrossEntropyLoss(), (x, y), **arguments)


def distance(one: Run, other: Run) -> float:
    """The largest difference of two models, relative to the largest parameter."""
    pairs = [(a.double(), other.model.state_dict()[name].double()) for name, a in one.model.state_dict().items()]
    largest = max(float(a.abs().max()) for a, _ in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / largest


def check_device(device: torch.device) -> Iterator[Check]:
    """All comparisons. Those between processes come first: a process that has used a GPU cannot be forked."""
    for name, changes in _between_processes():
        yield _compared(f"2 processes, {name}", run(plain_model, device, virtual=False, **changes), changes)
    for name, changes in methods():
        yield _compared(name, run(plain_model, device, **changes), changes)
        yield _resumed(name, device, changes)
    for precision in ("bfloat16", "float16"):
        loss = run(plain_model, device, autocast=precision).result["models"]["mean"]["loss"]
        yield Check(f"autocast {precision}", f"loss {loss:.3f}", "" if math.isfinite(loss) else "it is not finite")


def describe_device(device: torch.device) -> list[Check]:
    """What the device is and can do."""
    module, count = module_of(device.type), count_of(device.type)
    names = [module.get_device_name(i) for i in range(count)] if hasattr(module, "get_device_name") else [device.type]
    return [
        Check("devices", f"{count}: {', '.join(names)}"),
        Check("float64", "yes" if widest(device) == torch.float64 else "no: sums that need it are taken on the host"),
    ]


def _between_processes() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("sync all-reduce", {"sync": AllReduce()}),
        ("sync d-psgd", {"sync": DPSGD()}),
        ("wire int8", {"sync": PeriodicAverage(), "period": 2, "wire": registry.get("wire", "int8")()}),
    ]


def _compared(name: str, found: Run, changes: dict[str, Any]) -> Check:
    apart = distance(found, run(plain_model, "cpu", **changes))
    # A code of few bits jumps where a number is rounded the other way: there only the loss is compared.
    coded = "wire" in changes and "float" not in registry.name_of(changes["wire"])
    allowed = 0.1 if coded else TOLERANCE
    problem = "" if apart <= allowed else f"differs from the CPU by {apart:.1e} of the largest parameter"
    return Check(name, f"as on the CPU, to {apart:.0e}" if not problem else "not as on the CPU", problem)


def _resumed(name: str, device: torch.device, changes: dict[str, Any]) -> Check:
    whole = run(model_with_dropout, device, **changes).result["params_sha256"]
    with tempfile.TemporaryDirectory() as folder:
        run(model_with_dropout, device, **changes, steps=STOP, out=folder, checkpoint_every=STOP)
        parts = run(model_with_dropout, device, **changes, out=folder, resume=True).result["params_sha256"]
    same = whole == parts
    return Check(f"{name}, resumed", "to the bit" if same else "not to the bit", "" if same else "resumed otherwise")
