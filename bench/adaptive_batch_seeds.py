"""The CIFAR-10 setting of adaptive_batch.py with many seeds and rates at once: differences smaller than seeds differ.

    python adaptive_batch_seeds.py --data-dir DIR --seeds 10-13 --rates 0.028,0.02,0.014,0.01     # to choose the rates
    python adaptive_batch_seeds.py --data-dir DIR --seeds 0-7 --rates 0.02 --only "^annealed$" --table FILE
    python adaptive_batch_seeds.py --data-dir DIR --seeds 0-4 --rates 0.01 --outer 0.5 --table FILE

The models of all workers, seeds and rates are one tensor, and their gradients a few batched products: a run takes 8 s
of one core instead of 30 to 70 s. Batch sizes, periods, schedule and initial models are those of the library; the order
of the examples is not its own, so single seeds differ from those of adaptive_batch.py. 20,000 examples of
16 x 16, 8 epochs, 4 workers, momentum 0.9, cosine schedule with warm-up. `--rates` are those of a batch of 8; other
batches have theirs in proportion. `--outer` are momenta of an outer Nesterov step at every round, as in
`DiLoCo(lr=1, momentum=0.5)`; with 0 models are averaged. Seeds from 10 on choose rates and momenta; the tables of the
docs have the others.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from adaptive_batch import cnn
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.context import Context, Forecast, WorkerInfo
from equipoise.data import CIFAR10
from equipoise.loop.lr_schedule import factor

WORKERS, EXAMPLES, EPOCHS, START, WARMUP, MOMENTUM, WEIGHT_DECAY = 4, 20_000, 8, 8, 0.1, 0.9, 5e-4
TOTAL, BLOCK = EXAMPLES * EPOCHS, EXAMPLES // WORKERS
SHAPES = ((27, 16), (1, 16), (144, 32), (1, 32), (512, 64), (1, 64), (64, 10), (1, 10))
ROUNDS = 1 / 3


class Step(NamedTuple):
    epoch: int
    place: int  # in the block of each worker
    batch: int  # of each worker
    rate: float  # times the one for batches of START
    due: bool


def decay(done: float) -> float:
    return factor("cosine", WARMUP, max(done, WARMUP))


def steps(batch: Any, period: Any) -> Iterator[Step]:
    """A run as the rules of the library lay it out. The rate of a constant batch is in proportion to it."""
    worker = WorkerInfo(examples=BLOCK, total_examples=EXAMPLES)
    context = Context(current_comm(), worker=worker, forecast=Forecast(TOTAL, decay))
    clock, sizes, rounds = context.clock, batch.bind(context), period.bind(context)
    for epoch in range(EPOCHS):
        place = 0
        while place < BLOCK:
            size = sizes.sizes()[0]
            taken = min(size, BLOCK - place)
            gain = sizes.lr_gain(size) if isinstance(sizes, eq.batch.Annealed) else size / START
            rate = gain * factor("cosine", WARMUP, (clock.consumed + 0.5 * taken * WORKERS) / TOTAL)
            clock.consumed += taken * WORKERS
            yield Step(epoch, place, taken, rate, rounds.due(clock))
            clock.step += 1
            place += taken


def both(period: int) -> tuple[Any, Any]:
    """Batch and period with equal budgets, such that the run takes ROUNDS of the rounds."""
    wanted = ROUNDS * EPOCHS * math.ceil(BLOCK / START) / period
    low, high = ROUNDS, 1.0
    for _ in range(12):
        part = (low + high) / 2
        rules = eq.batch.Annealed(start=START, rounds=part), eq.period.AnnealedPeriod(steps=period, rounds=part)
        low, high = (part, high) if sum(step.due for step in steps(*rules)) < wanted else (low, part)
    return eq.batch.Annealed(start=START, rounds=low), eq.period.AnnealedPeriod(steps=period, rounds=low)


def rules(period: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    every, small, large = eq.period.Every(period), eq.batch.Fixed(START), round(START / ROUNDS)
    longer = round(period / ROUNDS)
    annealed = {
        f"annealed, power {power:g}": lambda power=power: (eq.batch.Annealed(START, ROUNDS, power), every)
        for power in (0.25, 0.75, 1.0)
    }
    return {
        f"constant {START}": lambda: (small, every),
        f"constant {large}": lambda: (eq.batch.Fixed(large), every),
        "annealed": lambda: (eq.batch.Annealed(START, ROUNDS), every),
        **annealed,
        "annealed, rate by the square root": lambda: (eq.batch.Annealed(START, ROUNDS, scale_lr="sqrt"), every),
        f"constant {START}, annealed period": lambda: (small, eq.period.AnnealedPeriod(period, ROUNDS)),
        f"constant {START}, H = {longer}": lambda: (small, eq.period.Every(longer)),
        "annealed batch and period": lambda: both(period),
    }


def load(where: str) -> list[tuple[Tensor, Tensor]]:
    """What the first convolution sees, [examples, 64, 27], and labels; training and test."""
    loaded, shrink = CIFAR10(dir=where, limit=EXAMPLES).load(), nn.AvgPool2d(2)
    parts = ((shrink(torch.as_tensor(p.x)), torch.as_tensor(p.y).long()) for p in (loaded.train, loaded.test))
    return [(unfold(x, 3, stride=2, padding=1).transpose(1, 2).contiguous(), y) for x, y in parts]


def initial(seed: int) -> Tensor:
    """The weights of adaptive_batch.py's model, in the layout of `logits`."""
    torch.manual_seed(seed)
    layers = [layer for layer in cnn(16) if hasattr(layer, "weight")]
    first, second, third, fourth = (layer.weight.detach() for layer in layers)
    weights = (
        first.reshape(16, 27).T,
        second.permute(2, 3, 1, 0),
        third.reshape(64, 32, 16).permute(2, 1, 0),
        fourth.T,
    )
    biases = (layer.bias.detach() for layer in layers)
    return torch.cat([p.reshape(-1) for pair in zip(weights, biases, strict=True) for p in pair])


def views(flat: Tensor) -> list[Tensor]:
    parts = flat.split([math.prod(shape) for shape in SHAPES], 1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, SHAPES, strict=True)]


def logits(weights: list[Tensor], patches: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Of models [models, ...] on [models, batch * 64, 27], and the activations that lead there."""
    w1, b1, w2, b2, w3, b3, w4, b4 = weights
    models = len(patches)
    first = torch.baddbmm(b1, patches, w1).relu_()
    padded = patches.new_zeros(models, batch, 10, 10, 16)
    padded[:, :, 1:9, 1:9] = first.view(models, batch, 8, 8, 16)
    windows = padded.unfold(2, 3, 2).unfold(3, 3, 2).permute(0, 1, 2, 3, 5, 6, 4)  # [.., 4, 4, 3, 3, 16]
    seen = windows.reshape(models, batch * 16, 144)
    second = torch.baddbmm(b2, seen, w2).relu_().view(models, batch, 512)
    third = torch.baddbmm(b3, second, w3).relu_()
    return first, seen, second, third, torch.baddbmm(b4, third, w4)


def gradients(weights: list[Tensor], into: list[Tensor], patches: Tensor, labels: Tensor) -> None:
    """Of the mean cross-entropy of each model on its own batch."""
    models, batch = labels.shape
    first, seen, second, third, last = logits(weights, patches, batch)
    _, _, w2, _, w3, _, w4, _ = weights

    def layer(index: int, inputs: Tensor, error: Tensor) -> None:
        torch.bmm(inputs.transpose(1, 2), error, out=into[2 * index])
        torch.sum(error, 1, keepdim=True, out=into[2 * index + 1])

    error = last.softmax(-1)
    error.view(-1, 10)[torch.arange(models * batch), labels.reshape(-1)] -= 1
    error /= batch
    layer(3, third, error)
    error = torch.bmm(error, w4.transpose(1, 2)).mul_(third > 0)
    layer(2, second, error)
    error = torch.bmm(error, w3.transpose(1, 2)).mul_(second > 0).view(models, batch * 16, 32)
    layer(1, seen, error)
    windows = torch.bmm(error, w2.transpose(1, 2)).view(models, batch, 4, 4, 3, 3, 16)
    padded = patches.new_zeros(models, batch, 10, 10, 16)
    for i in range(3):
        for j in range(3):
            padded[:, :, i : i + 7 : 2, j : j + 7 : 2] += windows[:, :, :, :, i, j]
    layer(0, patches, padded[:, :, 1:9, 1:9].reshape(models, batch * 64, 16).mul_(first > 0))


def train(
    data: list[tuple[Tensor, Tensor]], seeds: list[int], rates: list[float], layout: list[Step], outer: float = 0.0
) -> Tensor:
    """Test accuracy in per cent and loss of the mean model, [seeds, rates, 2]. outer: momentum of the outer step."""
    (patches, labels), (test, test_labels) = data
    runs = len(seeds) * len(rates)
    models = runs * WORKERS
    flat = torch.stack([initial(seed) for seed in seeds]).repeat_interleave(models // len(seeds), 0)
    momentum, gradient = torch.zeros_like(flat), torch.empty_like(flat)
    weights, into = views(flat), views(gradient)
    rate = torch.tensor(rates).repeat_interleave(WORKERS).repeat(len(seeds)).view(models, 1)
    generators = [torch.Generator().manual_seed(1000 + seed) for seed in seeds]
    blocks = [torch.randperm(EXAMPLES, generator=g).view(WORKERS, BLOCK) for g in generators]
    anchor = flat.view(runs, WORKERS, -1)[:, :1].clone()
    velocity = torch.zeros_like(anchor)
    epoch = -1
    for step in layout:
        if step.epoch != epoch:
            epoch = step.epoch
            orders = [
                b[torch.randperm(BLOCK, generator=g)] for bs, g in zip(blocks, generators, strict=True) for b in bs
            ]
            order = torch.stack(orders).view(len(seeds), 1, WORKERS, BLOCK).expand(-1, len(rates), -1, -1)
        chosen = order[..., step.place : step.place + step.batch].reshape(models, step.batch)
        inputs = patches.index_select(0, chosen.flatten()).view(models, step.batch * 64, 27)
        gradients(weights, into, inputs, labels[chosen])
        momentum.mul_(MOMENTUM).add_(gradient.add_(flat, alpha=WEIGHT_DECAY))
        flat.addcmul_(momentum, rate, value=-step.rate)
        if step.due:
            workers = flat.view(runs, WORKERS, -1)
            mean = workers.mean(1, keepdim=True)
            if outer:
                velocity.mul_(outer).add_(mean - anchor)
                mean.add_(velocity, alpha=outer)
                anchor = mean
            workers.copy_(mean.expand_as(workers))
    found = []
    for model in flat.view(runs, WORKERS, -1).mean(1, keepdim=True):
        scores = [logits(views(model), p.reshape(1, -1, 27), len(p))[-1][0] for p in test.split(500)]
        score = torch.cat(scores)
        right = (score.argmax(-1) == test_labels).float().mean()
        found.append(torch.stack([100 * right, cross_entropy(score, test_labels)]))
    return torch.stack(found).view(len(seeds), len(rates), 2)


def check() -> None:
    """Logits and gradients are those of the model that adaptive_batch.py trains."""
    images, labels = torch.randn(5, 3, 16, 16), torch.randint(10, (5,))
    patches = unfold(images, 3, stride=2, padding=1).transpose(1, 2).reshape(1, -1, 27)
    flat = initial(0)[None].requires_grad_()
    cross_entropy(logits(views(flat), patches, 5)[-1][0], labels).backward()
    assert flat.grad is not None
    torch.manual_seed(0)
    model, found = cnn(16), torch.empty_like(flat)
    score = logits(views(flat.detach()), patches, 5)[-1][0]
    gradients(views(flat.detach()), views(found), patches, labels[None])
    apart = [float((ours - its).abs().max()) for ours, its in ((score, model(images).detach()), (found, flat.grad))]
    print(f"logits differ by {apart[0]:.1e}, gradients by {apart[1]:.1e}")


def span(text: str) -> list[int]:
    first, last = text.split("-")
    return list(range(int(first), int(last) + 1))


def numbers(text: str) -> list[float]:
    return [float(value) for value in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--check", action="store_true", help="only compare with the model of adaptive_batch.py")
    parser.add_argument("--periods", type=lambda text: [int(h) for h in text.split(",")], default=[16])
    parser.add_argument("--only", nargs="+", default=["^constant 8$", "^constant 24$", "^annealed$"], help="patterns")
    parser.add_argument("--seeds", type=span, default=span("0-7"))
    parser.add_argument("--rates", type=numbers, default=[0.02])
    parser.add_argument("--outer", type=numbers, default=[0.0], help="momenta of an outer step at rounds; 0: the mean")
    parser.add_argument("--table", metavar="FILE", help="add what was measured to this file, for docs/make_tables.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        check()
        return
    if args.data_dir is None:
        parser.error("--data-dir is needed, with CIFAR-10 in it")
    data = load(args.data_dir)
    for period in args.periods:
        for name, rule in rules(period).items():
            if not any(re.search(pattern, name) for pattern in args.only):
                continue
            layout = list(steps(*rule()))
            rounds = sum(step.due for step in layout)
            for outer in args.outer:
                started, label = time.time(), f"{name}, outer {outer:g}" if outer else name
                found = train(data, args.seeds, args.rates, layout, outer)
                for rate, values in zip(args.rates, found.unbind(1), strict=True):
                    (accuracy, loss), spread = values.mean(0), values[:, 0].std()
                    quality = f"{accuracy:.2f} +- {spread:.2f} %, loss {loss:.4f}"
                    cost = f"{len(layout)} steps, {rounds} rounds, {time.time() - started:.0f} s"
                    print(f"H {period:>2}  {label:<36} rate {rate:<6g} {quality}, {cost}", flush=True)
                    if args.table:
                        keep(Path(args.table), f"H = {period}, {label}, rate {rate:g}", args.seeds, values, rounds)


def keep(path: Path, name: str, seeds: list[int], values: Tensor, rounds: int) -> None:
    """{"H = PERIOD, RULE, rate RATE": {"rounds": n, "seeds": {seed: [accuracy, loss]}}}, beside what the file has."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    row = known.setdefault(name, {"rounds": rounds, "seeds": {}})
    row["rounds"] = rounds
    row["seeds"] |= {str(seed): [round(v, 4) for v in pair] for seed, pair in zip(seeds, values.tolist(), strict=True)}
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
