"""Gossip methods on all workers and several learning rates at once, as matrices: grids that threads cannot afford.

The models of all workers and rates are one tensor X of [rates, workers, parameters]; W multiplies its second dimension.
The methods are written down anew, from their equations. `detag_cifar10.py --check` compares them with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, group_norm, relu, unfold

import equipoise as eq
from equipoise.sync.accelerated import FITTED, GossipPlan


class LeNet:
    """With strides in place of pooling, for images of 3 x 16 x 16: 44,726 parameters."""

    side = 16

    shapes = ((6, 3, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 256), (120,), (84, 120), (84,), (10, 84), (10,))

    @staticmethod
    def module(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    @staticmethod
    def inputs(x: torch.Tensor) -> torch.Tensor:
        """What the first convolution sees, the same for all learning rates: [examples, 64, 75]."""
        return unfold(x, 5, padding=2, stride=2).transpose(1, 2).contiguous()

    @classmethod
    def logits(cls, x: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        """[rates, workers, parameters] and [workers, batch, 64, 75] to [rates, workers, batch, 10]."""
        (rates, workers, _), batch = x.shape, patches.shape[1]
        parts = x.split([math.prod(s) for s in cls.shapes], -1)
        w1, b1, w2, b2, f1, c1, f2, c2, f3, c3 = (p.unflatten(-1, s) for p, s in zip(parts, cls.shapes, strict=True))
        first = w1.reshape(rates, workers, 6, 75).permute(1, 3, 0, 2).reshape(workers, 75, rates * 6)
        h = torch.bmm(patches.reshape(workers, batch * 64, 75), first).reshape(workers, batch, 8, 8, rates, 6)
        h = relu(h + b1.permute(1, 0, 2)[:, None, None, None]).permute(1, 4, 0, 5, 2, 3)
        models = rates * workers
        h = conv2d(h.reshape(batch, models * 6, 8, 8), w2.reshape(-1, 6, 5, 5), b2.reshape(-1), 2, 2, groups=models)
        h = relu(h).reshape(batch, rates, workers, 256).permute(1, 2, 0, 3)
        h = relu(h @ f1.transpose(-1, -2) + c1.unsqueeze(-2))
        h = relu(h @ f2.transpose(-1, -2) + c2.unsqueeze(-2))
        return h @ f3.transpose(-1, -2) + c3.unsqueeze(-2)


class Perceptron:
    """One hidden layer, for images of 3 x 8 x 8: 6,506 parameters; a tenth of the time of the other one."""

    side = 8
    shapes = ((32, 192), (32,), (10, 32), (10,))

    @staticmethod
    def module(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))

    @staticmethod
    def inputs(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)

    @classmethod
    def logits(cls, x: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """[rates, workers, parameters] and [workers, batch, 192] to [rates, workers, batch, 10]."""
        parts = x.split([math.prod(s) for s in cls.shapes], -1)
        w1, b1, w2, b2 = (p.unflatten(-1, s) for p, s in zip(parts, cls.shapes, strict=True))
        h = relu(inputs @ w1.transpose(-1, -2) + b1.unsqueeze(-2))
        return h @ w2.transpose(-1, -2) + b2.unsqueeze(-2)


class Residual(nn.Module):
    """Two convolutions with GroupNorm; with a stride, the shortcut is a convolution of 1 x 1."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.GroupNorm(2, outer)
        self.second, self.second_norm = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.GroupNorm(2, outer)
        self.shortcut = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.second_norm(self.second(relu(self.first_norm(self.first(x)))))
        return relu(inside + self.shortcut(x))


class ResNet:
    """ResNet-8 with GroupNorm, for images of 3 x 16 x 16: a stem with a stride, three blocks, 19,858 parameters."""

    side = 16
    blocks = ((8, 8, 1), (8, 16, 2), (16, 32, 2))
    stem = ((8, 3, 3, 3), (8,), (8,))
    head = ((10, 32), (10,))

    @classmethod
    def module(cls, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        stem = (nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.GroupNorm(2, 8), nn.ReLU())
        blocks = (Residual(*block) for block in cls.blocks)
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    @staticmethod
    def inputs(x: torch.Tensor) -> torch.Tensor:
        """What the stem sees, the same for all learning rates: [examples, 64, 27]."""
        return unfold(x, 3, padding=1, stride=2).transpose(1, 2).contiguous()

    @classmethod
    def shapes_of(cls, inner: int, outer: int, stride: int) -> tuple[tuple[int, ...], ...]:
        """In the order of `Residual.parameters()`."""
        norm = ((outer,), (outer,))
        convolutions = ((outer, inner, 3, 3), *norm, (outer, outer, 3, 3), *norm)
        return (*convolutions, (outer, inner, 1, 1)) if stride > 1 else convolutions

    @classmethod
    def logits(cls, x: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        """[rates, workers, parameters] and [workers, batch, 64, 27] to [rates, workers, batch, 10]."""
        (rates, workers, _), batch = x.shape, patches.shape[1]
        models = rates * workers
        shapes = [*cls.stem, *(s for block in cls.blocks for s in cls.shapes_of(*block)), *cls.head]
        parts = zip(x.split([math.prod(s) for s in shapes], -1), shapes, strict=True)

        def take() -> torch.Tensor:
            """The next parameter, of all models: their outputs are channels of one image."""
            part, shape = next(parts)
            return part.reshape(models * shape[0], *shape[1:])

        def norm(h: torch.Tensor) -> torch.Tensor:
            return group_norm(h, 2 * models, take(), take())

        first = take().reshape(rates, workers, 8, 27).permute(1, 3, 0, 2).reshape(workers, 27, rates * 8)
        h = torch.bmm(patches.reshape(workers, batch * 64, 27), first).reshape(workers, batch, 8, 8, rates, 8)
        h = relu(norm(h.permute(1, 4, 0, 5, 2, 3).reshape(batch, models * 8, 8, 8)))
        for _, _, stride in cls.blocks:
            inside = relu(norm(conv2d(h, take(), None, stride, 1, groups=models)))
            inside = norm(conv2d(inside, take(), None, 1, 1, groups=models))
            h = relu(inside + (conv2d(h, take(), None, stride, groups=models) if stride > 1 else h))
        h = h.mean((2, 3)).reshape(batch, rates, workers, 32).permute(1, 2, 0, 3)
        weight, bias = take().reshape(rates, workers, 10, 32), take().reshape(rates, workers, 1, 10)
        return h @ weight.transpose(-1, -2) + bias


NETWORKS: dict[str, Any] = {"lenet": LeNet, "resnet": ResNet, "mlp": Perceptron}


class Method:
    """One update of all models by `step(X, G, lr)`; `gossip` is the matrix of a round, or of all rounds of a step."""

    def __init__(self, gossip: np.ndarray, rounds: float, vectors: float, momentum: float = 0.0):
        self.gossip = torch.as_tensor(gossip)
        self.rounds, self.sent = rounds, rounds * vectors  # per step on average; vectors to each neighbour
        self.momentum, self.velocity = momentum, torch.zeros(())
        self.t = 0

    def moved(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        """SGD."""
        if self.momentum:
            g = self.velocity = self.momentum * self.velocity + g
        return x - lr * g

    def mix(self, z: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.gossip.to(z.dtype), z)


class Average(Method):
    def step(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        return self.moved(x, g.mean(1, keepdim=True).expand_as(g), lr)


class DPSGD(Method):
    def step(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        return self.mix(self.moved(x, g, lr))


class D2(Method):
    correction: Any = 0.0

    def step(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        psi = self.moved(x, g, lr)
        x = self.mix(psi + self.correction)
        self.correction = x - psi
        return x


class Tracking(Method):
    """Y <- Y + G - G_before;  X <- P (X - a Y);  Y <- P Y. With P = W it is DSGT, with P = AG_R(W) DeTAG."""

    tracker: Any = 0.0
    before: Any = 0.0

    def step(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        y, self.before = self.tracker + g - self.before, g
        x, self.tracker = self.mix(self.moved(x, y, lr)), self.mix(y)
        return x


class LocalSteps(Method):
    """DeTAG with a period of `length` steps."""

    def __init__(self, *args: Any, length: int, **more: Any):
        super().__init__(*args, **more)
        self.length, self.correction, self.directions = length, torch.zeros(()), torch.zeros(())

    def step(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        direction = g + self.correction
        self.directions = self.directions + direction
        x = self.moved(x, direction, lr)
        self.t += 1
        if self.t % self.length == 0:
            z = self.directions / self.length
            x, self.correction, self.directions = self.mix(x), self.correction - z + self.mix(z), torch.zeros(())
        return x


class Frozen(Method):
    """DeTAG of the paper, with phases of `length` steps."""

    def __init__(self, *args: Any, length: int, **more: Any):
        super().__init__(*args, **more)
        self.length, self.tracker, self.gathered, self.before = length, 0.0, 0.0, 0.0
        self.tracker: Any
        self.gathered: Any
        self.before: Any

    def step(self, x: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        self.gathered = self.gathered + g / self.length
        self.t += 1
        if self.t % self.length:
            return x
        x, first = self.mix(x), self.t == self.length
        y = torch.zeros_like(x) if first else self.mix(self.tracker)
        if not first:
            x = self.moved(x, y, lr)
        self.tracker, self.before, self.gathered = y + self.gathered - self.before, self.gathered, 0.0
        return x


def rounds_matrix(weights: np.ndarray, plan: GossipPlan) -> np.ndarray:
    """AG_R of I + s (W - I)."""
    identity = np.eye(len(weights))
    mix, before, now = identity + plan.stretch * (weights - identity), identity, identity
    for each in plan.etas:
        before, now = now, (1.0 + each) * mix @ now - each * before
    return now


def methods(graph: Any, momentum: float = 0.0) -> dict[str, tuple[Callable[[], Any], Any, int]]:
    """By name: the simulated method, the same of the library, and its period.

    Vectors are those to each of two neighbours: an all-reduce, which sends 2 (n - 1) / n in all, counts for half of it.
    """
    bound, weights = graph, graph.matrix()
    free = type(graph)(slack=graph.slack)
    finer = GossipPlan.make(bound, FITTED, None, "DeTAG").rounds + 1
    kinds = ((FITTED, None), ("accelerated", None), (FITTED, 1), (FITTED, finer))
    plans = [GossipPlan.make(bound, kind, rounds, "DeTAG") for kind, rounds in kinds]
    fitted, accelerated, single, finely = (rounds_matrix(weights, plan) for plan in plans)
    more = {"momentum": momentum}
    few, many = plans[0].rounds, plans[1].rounds

    def local(gossip: np.ndarray, rounds: int, length: int) -> Callable[[], Any]:
        return lambda: LocalSteps(gossip, rounds / length, 2, length=length, **more)

    return {
        "all-reduce": (lambda: Average(weights, 1, 1 - 1 / bound.size, **more), eq.sync.AllReduce(), 1),
        "D-PSGD": (lambda: DPSGD(weights, 1, 1, **more), eq.sync.DPSGD(free), 1),
        "D2": (lambda: D2(weights, 1, 1, **more), eq.sync.D2(free), 1),
        "DSGT": (lambda: Tracking(weights, 1, 2, **more), eq.sync.DSGT(free), 1),
        "DeTAG": (lambda: Tracking(fitted, few, 2, **more), eq.sync.DeTAG(free), 1),
        "DeTAG, one round": (lambda: Tracking(single, 1, 2, **more), eq.sync.DeTAG(free, rounds=1), 1),
        "DeTAG, period R": (local(fitted, few, few), eq.sync.DeTAG(free), few),
        "DeTAG, period 2R": (local(fitted, few, 2 * few), eq.sync.DeTAG(free), 2 * few),
        "DeTAG, R + 1 rounds, period 8": (local(finely, finer, 8), eq.sync.DeTAG(free, rounds=finer), 8),
        "DeTAG, frozen": (lambda: Frozen(accelerated, 1, 2, length=many, **more), eq.sync.DeTAG(free, frozen=True), 1),
    }


def simulate(
    network: Any,
    make: Callable[[], Any],
    data: tuple[torch.Tensor, torch.Tensor],
    blocks: list[np.ndarray],
    rates: list[float],
    *,
    batch: int,
    steps: int,
    seed: int,
    measure: torch.Tensor,
    every: int,
    shuffle: bool = True,
) -> tuple[torch.Tensor, list[list[float]]]:
    """All models at the end, and the mean model's loss on `measure` after every so many steps: a row of all rates.

    data: what `network.inputs` gives, and labels. blocks: the examples of each worker, in equal number.
    """
    inputs, labels = data
    lr = torch.tensor(rates, dtype=inputs.dtype).view(-1, 1, 1)
    rng = np.random.default_rng([seed, 1])
    start = nn.utils.parameters_to_vector(network.module(seed).parameters()).detach().to(inputs.dtype)
    x = start.expand(len(rates), len(blocks), -1).clone()
    method, curve, place, order = make(), [], len(blocks[0]), blocks
    for t in range(steps):
        if place + batch > len(blocks[0]):
            place, order = 0, [rng.permutation(block) if shuffle else block for block in blocks]
        index = torch.from_numpy(np.stack([block[place : place + batch] for block in order]))
        place += batch
        out = network.logits(x.requires_grad_(), inputs[index])
        wanted = labels[index].expand(len(rates), -1, -1).reshape(-1)
        (g,) = torch.autograd.grad(cross_entropy(out.reshape(-1, 10), wanted, reduction="sum") / batch, x)
        with torch.no_grad():
            x = method.step(x.detach(), g, lr)
            if (t + 1) % every == 0:
                out = network.logits(x.mean(1, keepdim=True), inputs[measure][None])
                wanted = labels[measure].repeat(len(rates))
                losses = cross_entropy(out.reshape(-1, 10), wanted, reduction="none").reshape(len(rates), -1).mean(1)
                curve.append([value if math.isfinite(value) else math.inf for value in losses.tolist()])
    return x, curve
