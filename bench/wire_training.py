"""Loss and accuracy against bytes for every wire, under DiLoCo with H = 16 and under all-reduce.

    python wire_training.py --data-dir DIR --out wire_training.json [--plot wire_training.png]
    python wire_training.py --data-dir DIR --quick                     # a minute: do all of them run?

CIFAR-10, images averaged down to 16 x 16, with a ResNet of 8 layers (GroupNorm) and momentum SGD; WikiText-2 with a
transformer of one layer and AdamW, trained on its validation part and tested on its test part. 4 virtual workers, all
runs of a task and a sync with the same number of steps, cosine decay, 3 seeds. Losses are those of the workers' mean
model at the end, on the first training examples and on the test part.

Tuned on a seed of its own, by the training loss: the learning rate of float32 all-reduce, and the outer learning rate
and momentum of float32 DiLoCo, which all other wires reuse. Top-k chooses among outer steps of its own, with residuals
in the models and with error feedback (with the decay of SparseLoCo too); random-k takes those of top-k.

Runs are kept in `--out` as they end, and not repeated. Differences are relative to the float32 run of the same seed.
`message` is the ratio of a float32 vector to one message, `sent` that of all bytes a worker sends: a sparse message
goes to all other workers, so its gain over an all-reduce falls as 2 / N.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import NonFinite
from equipoise.data import CIFAR10, Text
from equipoise.loop.from_recipe import language_loss
from equipoise.loop.lr_schedule import LRSchedule
from equipoise.models import ResNet, Transformer
from equipoise.wire.base import pieces_of

WORKERS, H = 4, 16
SYNCS = ("DiLoCo", "all-reduce")
TASKS = {"cifar": "CIFAR-10, ResNet-8", "text": "WikiText-2, transformer"}
# Of DiLoCo the best of preliminary runs on one seed (0.05, 0.1, 0.2; 0.002 to 0.008), whose losses were level.
LRS = {
    ("cifar", "DiLoCo"): 0.1,
    ("text", "DiLoCo"): 4e-3,
    ("cifar", "all-reduce"): 0.05,
    ("text", "all-reduce"): 2e-3,
}
OUTER = (1.0, 0.5)
FLOAT32, NUDGED = "float32", "float32, nudged"  # nudged: initial parameters times 1 + 2^-20, so rounding differs
TOP_K, SUMMED = "top-k", "top-k, all-to-all"
WIRES: dict[str, Callable[[float | None], Any]] = {
    FLOAT32: lambda feedback: eq.wire.Float32(),
    NUDGED: lambda feedback: eq.wire.Float32(),
    "bfloat16": lambda feedback: eq.wire.BFloat16(),
    "float16": lambda feedback: eq.wire.Float16(),
    "int8": lambda feedback: eq.wire.Int8(),
    "int4": lambda feedback: eq.wire.Int4(),
    "sign": lambda feedback: eq.wire.Sign(),
    "power-sgd, rank 2": lambda feedback: eq.wire.PowerSGD(rank=2),
    TOP_K: lambda feedback: eq.wire.TopK(residual="model"),
    SUMMED: lambda feedback: eq.wire.TopK(residual="model", reduce="all-to-all"),
    "top-k, feedback": lambda feedback: sparse(eq.wire.TopK, feedback, residual="feedback"),
    "dct": lambda feedback: eq.wire.Dct(),
    "random-k": lambda feedback: eq.wire.RandomK(residual="model"),
}
# Outer learning rate, momentum, decay of the residual: the best is taken, by the training loss on a seed of its own.
TUNED: dict[str, tuple[tuple[float, float, float | None], ...]] = {
    TOP_K: ((2.0, 0.0, None), (1.0, 0.5, None)),
    SUMMED: ((2.0, 0.0, None), (1.0, 0.5, None)),
    "top-k, feedback": ((1.0, 0.0, 0.95), (1.0, 0.0, None)),
}
LIKE = {"random-k": TOP_K, "dct": "top-k, feedback"}  # takes the outer step of another wire
GOALS = {"int4": (0.002, 1.0), TOP_K: (0.005, 100.0), SUMMED: (0.005, 100.0)}  # loss, bytes
WARM = {"cifar": 512, "text": 1024}  # steps
WARM_LRS = {"cifar": 0.1, "text": 8e-3}
CACHE: dict[str, Any] = {}


def sparse(wire: Callable[..., Any], feedback: float | None, **options: Any) -> Any:
    return wire(**options) if feedback is None else wire(feedback=feedback, **options)


class Case(NamedTuple):
    task: str
    sync: str
    wire: str
    seed: int
    lr: float
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    feedback: float | None = None  # None: as the wire has it
    steps: int = 1536
    batch: int = 8


def load(task: str, args: argparse.Namespace) -> Any:
    """Training and test pairs, and what the model is built from."""
    if task not in CACHE:
        where = Path(args.data_dir)
        if task == "cifar":
            loaded = CIFAR10(dir=str(where), limit=args.examples, test_limit=args.tests).load()
            shrink = nn.AvgPool2d(32 // args.pixels)
            parts = [(shrink(torch.as_tensor(p.x)), torch.as_tensor(p.y)) for p in (loaded.train, loaded.test)]
        else:
            loaded = Text(
                path=str(where / "wikitext2-valid.txt"),
                test_path=str(where / "wikitext2-test.txt"),
                vocabulary=args.vocabulary,
                length=args.length,
            ).load()
            parts = [(torch.as_tensor(p.x), torch.as_tensor(p.y)) for p in (loaded.train, loaded.test)]
        CACHE[task] = (*parts, loaded)
    return CACHE[task]


def build(task: str, seed: int, args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(seed)
    made = Transformer(width=32, layers=args.layers) if task == "text" else ResNet(norm="group", width=args.width)
    return made.build(load(task, args)[2])


def optimizer(text: bool, parameters: Any, lr: float) -> torch.optim.Optimizer:
    if text:
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01, fused=True)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)


def warm_start(task: str, seed: int, args: argparse.Namespace) -> Path:
    """The model from which all runs of a seed begin: plain all-reduce, the learning rate decayed to zero."""
    path = Path(args.folder) / f"{task}-{seed}.pt"
    if not path.exists():
        train, _, _ = load(task, args)
        text = task == "text"
        run = eq.train(
            build(task, seed, args),
            language_loss if text else nn.CrossEntropyLoss(),
            train,
            optimizer=lambda parameters: optimizer(text, parameters, WARM_LRS[task]),
            scheduler=lambda o: LRSchedule(o, "cosine", 0.1),
            workers=WORKERS,
            steps=args.warm or WARM[task],
            batch=args.text_batch if text else args.batch,
            sync=eq.sync.AllReduce(),
            seed=seed,
            log_every=1024,
        )
        torch.save(run.model.state_dict(), half := path.with_suffix(f".{os.getpid()}"))
        half.rename(path)
    return path


def one(job: tuple[Case, argparse.Namespace]) -> tuple[Case, dict[str, Any]]:
    case, args = job
    torch.set_num_threads(1)
    train, test, _ = load(case.task, args)
    text, diloco = case.task == "text", case.sync == "DiLoCo"
    loss = language_loss if text else nn.CrossEntropyLoss()

    def model() -> nn.Module:
        made = build(case.task, case.seed, args)
        made.load_state_dict(torch.load(warm_start(case.task, case.seed, args)))
        if case.wire == NUDGED:
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.mul_(1 + 2.0**-20)
        return made

    outer = {"lr": case.outer_lr, "momentum": case.outer_momentum, "nesterov": case.outer_momentum > 0}
    wire = WIRES[case.wire](case.feedback)
    row: dict[str, Any] = {"case": case._asdict(), "loss": math.inf}
    started = time.perf_counter()
    try:
        run = eq.train(
            model,
            loss,
            train,
            test=(test[0][:WORKERS], test[1][:WORKERS]),  # the real evaluation comes below
            optimizer=lambda parameters: optimizer(text, parameters, case.lr),
            scheduler=lambda o: LRSchedule(o, "cosine", 0.1),
            workers=WORKERS,
            steps=case.steps,
            batch=case.batch,
            period=H if diloco else 1,
            sync=eq.sync.DiLoCo(**outer) if diloco else eq.sync.AllReduce(),
            wire=wire,
            seed=case.seed,
            log_every=case.steps,
        )
    except NonFinite:
        return case, row
    shapes = tuple(tuple(p.shape) for p in run.model.parameters())
    elements = sum(math.prod(shape) for shape in shapes)
    row |= {"seconds": time.perf_counter() - started, "elements": elements}
    row["sent"] = run.result["bytes"] / WORKERS / case.steps  # by a worker, per step
    row["message"] = wire.message_bytes(elements, pieces_of(shapes))
    count = args.windows if text else args.tests
    row["loss"], row["accuracy"] = quality(run.model, loss, train, count)
    row["test_loss"], row["test_accuracy"] = quality(run.model, loss, test, count)
    return case, row


@torch.no_grad()
def quality(model: nn.Module, loss: Callable[..., torch.Tensor], data: Any, count: int) -> tuple[float, float]:
    """Mean loss, and the part of right answers: classes of images, next words."""
    model.eval()
    total, right, answers = 0.0, 0, 0
    inputs, targets = data[0][:count], data[1][:count]
    for x, y in zip(inputs.split(64), targets.split(64), strict=True):
        outputs = model(x)
        total += loss(outputs, y).item() * len(x)
        right += int((outputs.argmax(-1) == y).sum())
        answers += y.numel()
    return total / len(inputs), right / answers


class Results:
    """Runs by what decided them, in a file that is written after each."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.path = args, Path(args.out) if args.out else None
        self.rows: dict[str, Any] = json.loads(self.path.read_text()) if self.path and self.path.exists() else {}

    def key(self, case: Case) -> str:
        a, text = self.args, case.task == "text"
        return json.dumps(
            [
                *case,
                *((a.vocabulary, a.windows, a.layers, a.length) if text else (a.examples, a.width, a.tests, a.pixels)),
            ]
        )

    def get(self, case: Case) -> dict[str, Any]:
        row: dict[str, Any] = self.rows[self.key(case)]
        return row

    def has(self, case: Case) -> bool:
        return self.key(case) in self.rows

    def need(self, cases: list[Case]) -> None:
        if self.args.kept_only:
            return
        missing = [case for case in dict.fromkeys(cases) if not self.has(case)]
        for task, seed in {(case.task, case.seed): None for case in missing}:
            warm_start(task, seed, self.args)  # once here, not in every process
        with multiprocessing.get_context("fork").Pool(self.args.jobs) as pool:
            jobs = [(case, self.args) for case in missing]
            for done, (case, row) in enumerate(pool.imap_unordered(one, jobs), 1):
                self.rows[self.key(case)] = row
                if self.path:
                    self.path.write_text(json.dumps(self.rows, indent=0) + "\n")
                print(
                    f"  {done}/{len(missing)} {case.task}, {case.sync}, {case.wire}, seed {case.seed}, lr {case.lr:g}, "
                    f"outer {case.outer_lr:g}/{case.outer_momentum:g}: loss {row['loss']:.4f}, "
                    f"{row.get('seconds', 0):.0f} s",
                    flush=True,
                )

    def best(self, cases: list[Case]) -> Case:
        return min(filter(self.has, cases), key=lambda case: self.get(case)["loss"])


def first(task: str, sync: str, args: argparse.Namespace) -> Case:
    diloco = sync == "DiLoCo"
    steps = args.steps if diloco else args.all_reduce_steps
    batch = args.batch if task == "cifar" else args.text_batch
    outer, momentum = OUTER if diloco else (1.0, 0.0)
    return Case(task, sync, FLOAT32, args.tuning_seed, LRS[task, sync], outer, momentum, None, steps, batch)


def syncs_of(args: argparse.Namespace) -> list[str]:
    return [sync for sync in SYNCS if args.sync in ("both", sync)]


def wires_of(sync: str, args: argparse.Namespace) -> list[str]:
    """Gradients have no model in which their residual could stay: both kinds of top-k are the same there."""
    wires = [wire for wire in WIRES if sync == "DiLoCo" or wire != "top-k, feedback"]
    return [wire for wire in wires if not args.wires or wire in (*args.wires.split(";"), FLOAT32)]


def tuned(tasks: list[str], results: Results) -> dict[tuple[str, str, str], Case]:
    """The choices of every task, sync and wire, from runs on one more seed."""
    args, choices, grids = results.args, {}, {}
    for task in tasks:
        for sync in syncs_of(args):
            for wire in wires_of(sync, args):
                case = choices[task, sync, wire] = first(task, sync, args)._replace(wire=wire)
                like = LIKE.get(wire, wire)
                if sync == "DiLoCo" and like in TUNED and not args.quick:
                    grids[task, sync, wire] = [
                        case._replace(wire=like, outer_lr=a, outer_momentum=m, feedback=decay)
                        for a, m, decay in TUNED[like]
                    ]
    results.need([case for cases in grids.values() for case in cases])
    for (task, sync, wire), cases in grids.items():
        if not any(map(results.has, cases)):
            del choices[task, sync, wire]
            continue
        best = results.best(cases)
        decay = best.feedback if best.wire == wire else None  # another wire has its own
        choices[task, sync, wire] = best._replace(wire=wire, feedback=decay)
    return choices


def differences(rows: list[dict[str, Any]], base: list[dict[str, Any]], name: str) -> list[float]:
    """Relative to the float32 run of the same seed."""
    pairs = zip(rows, base, strict=False)
    return [row[name] / other[name] - 1 if math.isfinite(row[name]) else math.inf for row, other in pairs]


def spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def table(title: str, rows: dict[str, list[dict[str, Any]]], cases: dict[str, Case]) -> dict[str, float]:
    """Print one task and sync: means over seeds, spreads, the goals."""
    print(
        f"\n{title}, lr {cases['float32'].lr:g}, {cases['float32'].steps} steps of {cases['float32'].batch} x {WORKERS}"
    )
    print(
        f"  {'':<20}{'bytes/step':>11}{'message':>9}{'sent':>8}{'train loss':>12}{'+-':>7}{'diff. %':>9}{'+-':>6}"
        f"{'test loss':>11}{'diff. %':>9}{'test acc. %':>13}  outer step"
    )
    base, values = rows["float32"], {}
    for name, seeds in rows.items():
        if not all(math.isfinite(row["loss"]) for row in seeds):
            print(f"  {name:<20} diverged")
            continue
        mean = {k: statistics.mean(row[k] for row in seeds) for k in seeds[0] if k != "case"}
        diff, test = differences(seeds, base, "loss"), differences(seeds, base, "test_loss")
        message, sent = 4 * mean["elements"] / mean["message"], base[0]["sent"] / mean["sent"]
        values[name] = {"diff": statistics.mean(diff), "message": message, "sent": sent}
        case = cases[name]
        outer = f"{case.outer_lr:g}, momentum {case.outer_momentum:g}" if case.sync == "DiLoCo" else ""
        outer += f", feedback {case.feedback:g}" if case.feedback is not None else ""
        print(
            f"  {name:<20}{mean['sent']:11.0f}{message:9.1f}{sent:8.1f}{mean['loss']:12.4f}"
            f"{spread([r['loss'] for r in seeds]):7.4f}{100 * statistics.mean(diff):9.2f}{100 * spread(diff):6.2f}"
            f"{mean['test_loss']:11.4f}{100 * statistics.mean(test):9.2f}{100 * mean['test_accuracy']:13.2f}  {outer}"
        )
    ratios = {}
    for name, (loss, bytes) in GOALS.items():
        if name not in values:
            continue
        got = values[name]
        ratios[f"{title}: {name}, loss / float32 - 1"] = got["diff"]
        met = "met" if got["diff"] <= loss else "MISSED"
        print(f"  {name}: loss {100 * got['diff']:+.2f} %, goal at most {100 * loss:g} %: {met}")
        if bytes > 1:
            met, sent = ("met" if got[k] >= bytes else "MISSED" for k in ("message", "sent"))
            print(
                f"  {name}: {got['message']:.0f} times smaller messages, goal {bytes:g}: {met}; "
                f"{got['sent']:.0f} times fewer bytes sent by {WORKERS} workers: {sent}"
            )
    return ratios


def write_table(args: argparse.Namespace, panels: dict[str, Any], choices: dict[Any, Case]) -> None:
    """For the tables of the docs: losses and accuracies of each seed, and bytes."""
    kept = ("loss", "test_loss", "test_accuracy", "sent", "message", "elements")
    content = {
        title: {wire: [{name: row.get(name) for name in kept} for row in seeds] for wire, seeds in rows.items()}
        for title, rows in panels.items()
    }
    about = {", ".join(which): case._asdict() for which, case in choices.items()}
    Path(args.table).write_text(json.dumps({"tables": content, "choices": about}, indent=1) + "\n")


def draw(panels: dict[str, dict[str, list[dict[str, Any]]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, -(-len(panels) // 2), figsize=(9, 6.5), squeeze=False, layout="constrained")
    for plot, (title, rows) in zip(axes.flat, panels.items(), strict=False):
        for number, name in enumerate(WIRES):
            seeds = rows.get(name, [])
            losses = [row["loss"] for row in seeds]
            if seeds and all(map(math.isfinite, losses)):
                sent, colour = [row["sent"] for row in seeds], plt.get_cmap("tab20")(number)
                plot.plot(sent, losses, "os^Dv<>pP*Xh"[number % 12], color=colour, ms=6, label=name)
        plot.set(xscale="log", xlabel="bytes sent per worker and step", ylabel="training loss", title=title)
        plot.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", metavar="FILE", help="keep runs there as they end, and take those that it has")
    parser.add_argument("--task", choices=("both", *TASKS), default="both")
    parser.add_argument("--sync", choices=("both", *SYNCS), default="both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuning-seed", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1024, help="with DiLoCo")
    parser.add_argument("--all-reduce-steps", type=int, default=256)
    parser.add_argument("--warm", type=int, help=f"steps of the common start, instead of {WARM}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--text-batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=8, help="of the ResNet")
    parser.add_argument("--pixels", type=int, default=8, help="of an image's side: means over squares of CIFAR-10's 32")
    parser.add_argument("--examples", type=int, default=40_000)
    parser.add_argument("--layers", type=int, default=1, help="of the transformer")
    parser.add_argument("--tests", type=int, default=10_000, help="images of each part that are evaluated")
    parser.add_argument("--windows", type=int, default=6_000, help="windows of text of each part that are evaluated")
    parser.add_argument("--length", type=int, default=16, help="words of a window")
    parser.add_argument("--vocabulary", type=int, default=500)
    parser.add_argument("--wires", help="some of them, separated by semicolons; float32 is always among them")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--kept-only", action="store_true", help="show what --out has: no run")
    parser.add_argument("--quick", action="store_true", help="few steps, one seed, no tuning: do they run?")
    parser.add_argument("--plot", metavar="FILE", help="draw losses against bytes")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--table", metavar="FILE", help="also write what docs/make_tables.py needs")
    args = parser.parse_args()
    if args.quick:
        args.steps = args.all_reduce_steps = args.warm = 32
        args.seeds, args.examples, args.tests, args.windows = 1, 2_000, 500, 200
    started, tasks = time.time(), list(TASKS) if args.task == "both" else [args.task]
    results = Results(args)
    args.folder = Path(args.out).with_suffix(".start") if args.out else tempfile.mkdtemp()
    Path(args.folder).mkdir(exist_ok=True)
    choices = tuned(tasks, results)
    cases = {which: [case._replace(seed=seed) for seed in range(args.seeds)] for which, case in choices.items()}
    results.need([case for seed in zip(*cases.values(), strict=True) for case in seed])
    runs = {which: [results.get(case) for case in seeds if results.has(case)] for which, seeds in cases.items()}
    panels, ratios = {}, {}
    for task in tasks:
        for sync in syncs_of(args):
            title = f"{TASKS[task]}, {sync}"
            wires = [wire for wire in wires_of(sync, args) if runs.get((task, sync, wire))]
            if FLOAT32 in wires:
                panels[title] = {wire: runs[task, sync, wire] for wire in wires}
                ratios |= table(title, panels[title], {wire: choices[task, sync, wire] for wire in wires})
    print(f"\n{time.time() - started:.0f} s, {args.seeds} seeds")
    if args.table:
        write_table(args, panels, choices)
    if args.plot:
        draw(panels, args.plot)
    if args.json:
        Path(args.json).write_text(
            json.dumps({k: v if math.isfinite(v) else None for k, v in ratios.items()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
