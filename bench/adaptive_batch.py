"""Adaptive local batches compared with small and large constant ones: accuracy or loss, steps, rounds, bytes, batch.

    python adaptive_batch.py --data-dir DIR [--plot FILE.png]      # CIFAR-10 and WikiText-2
    python adaptive_batch.py --task digits --seeds 3               # the bundled digits: two minutes
    python adaptive_batch.py --data-dir DIR --task cifar --full    # images of 32 x 32, 40 epochs

CIFAR-10, images averaged down to 16 x 16, with a CNN of 38,570 parameters and momentum SGD for H = 4, 16, 32;
WikiText-2 with a small transformer and AdamW, trained on its validation part and tested on its test part; digits with
an MLP, plain SGD and H = 8. 4 virtual workers. All runs consume the same number of samples and scale the learning rate
by the same law, lr(b) = lr (b / b_0)^p by `--scaling`, with warm-up and decay by samples; `--lr` is the best one for
the small batch. The norm test runs as in the paper (last gradient of a round, measured norm) and in a steadier variant:
first gradient, debiased, smoothed, slow growth, may shrink. `annealed` grows with the decay of the learning rate to the
budget `--rounds`, and the annealed period keeps the small batch and makes rounds rarer with the decay, to the same
budget. Their rivals are the constant batch that takes as many rounds and the small batch with a constant, longer
period. Each has its learning rate times `--factors`. With `--outer` a round ends in an outer Nesterov step with that
momentum instead of a mean. Goal: the accuracy of the small batch to within 0.3 points (its loss to within 1 %) with a
third of its rounds, and ahead of that constant batch with every seed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.data import CIFAR10, Digits, Text
from equipoise.loop.from_recipe import language_loss
from equipoise.loop.lr_schedule import LRSchedule, gain
from equipoise.models import MLP, Transformer

WORKERS = 4
CACHE: dict[str, Any] = {}


class Case(NamedTuple):
    task: str
    period: int
    name: str
    seed: int
    batch: Any
    lr: float
    every: Any  # steps between rounds, or a period: other than `period` where rounds are saved by it


def load(task: str, args: argparse.Namespace) -> Any:
    """Training and test pairs, and what the model is built from."""
    if task not in CACHE:
        where = Path(args.data_dir or ".")
        if task == "digits":
            loaded = Digits().load()
            parts = [(p.x, p.y) for p in (loaded.train, loaded.test)]
        elif task == "cifar":
            loaded = CIFAR10(dir=str(where), limit=args.examples, test_limit=args.tests).load()
            shrink = nn.AvgPool2d(32 // args.side)
            parts = [(shrink(torch.as_tensor(p.x)), torch.as_tensor(p.y)) for p in (loaded.train, loaded.test)]
        else:
            loaded = Text(
                path=str(where / "wikitext2-valid.txt"),
                test_path=str(where / "wikitext2-test.txt"),
                vocabulary=args.vocabulary,
                limit=args.windows,
            ).load()
            parts = [(p.x, p.y) for p in (loaded.train, loaded.test)]
        CACHE[task] = (*parts, loaded)
    return CACHE[task]


def cnn(side: int) -> nn.Module:
    """Strides in place of pooling: a step on a few images costs little more than its calls."""
    convolutions = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(2 * side**2, 64), nn.ReLU(), nn.Linear(64, 10))


def one(job: tuple[Case, argparse.Namespace]) -> tuple[Case, dict[str, Any]]:
    case, args = job
    torch.set_num_threads(1)
    train, test, loaded = load(case.task, args)
    text = case.task == "text"

    def model() -> nn.Module:
        torch.manual_seed(case.seed)
        if case.task == "digits":
            return MLP().build(loaded)
        return Transformer().build(loaded) if text else cnn(args.side)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        if text:
            return torch.optim.AdamW(parameters, lr=case.lr, weight_decay=0.01)
        if case.task == "digits":
            return torch.optim.SGD(parameters, lr=case.lr)
        return torch.optim.SGD(parameters, lr=case.lr, momentum=0.9, weight_decay=5e-4)

    with tempfile.TemporaryDirectory() as folder:
        run = eq.train(
            model,
            language_loss if text else nn.CrossEntropyLoss(),
            train,
            test=test,
            optimizer=optimizer,
            scheduler=lambda o: LRSchedule(o, "cosine", 0.0 if case.task == "digits" else 0.1, scaling(case, args)),
            workers=WORKERS,
            epochs=epochs(case.task, args),
            batch=case.batch,
            period=case.every,
            sync=eq.sync.DiLoCo(lr=1.0, momentum=args.outer) if args.outer else eq.sync.PeriodicAverage(),
            seed=case.seed,
            out=Path(folder) / "run",
            checkpoint_every=10**9,
            evaluate_every=1 if args.plot else 10**6,
            log_every=1000,
        )
        events = run.events

    def quality(models: dict[str, Any]) -> float:
        return models["mean"]["loss"] if text else 100 * models["mean"]["accuracy"]

    result = run.result
    return case, {
        "quality": quality(result["models"]),
        "steps": result["steps"],
        "rounds": result["rounds"],
        "megabytes": result["bytes"] / 1e6,
        "batch": result["samples"] / result["steps"] / WORKERS,
        "curve": [(e["rounds"], quality(e["models"])) for e in events if e["event"] == "evaluate"],
    }


def epochs(task: str, args: argparse.Namespace) -> float:
    return {"text": args.text_epochs, "digits": args.digits_epochs}.get(task, args.epochs)  # type: ignore[no-any-return]


def scaling(case: Case, args: argparse.Namespace) -> str:
    """Of the schedule: an annealed batch brings its own."""
    if isinstance(case.batch, eq.batch.Annealed) or "unscaled" in case.name:
        return "none"
    name: str = args.text_scaling if case.task == "text" else args.scaling
    return name


def key(case: Case, args: argparse.Namespace) -> str:
    """Everything that decides a run."""
    text = case.task == "text"
    sizes = (args.windows, args.vocabulary) if text else (args.examples, args.side)
    outer = (args.outer,) if args.outer else ()
    return repr((*case, args.text_scaling if text else args.scaling, *sizes, epochs(case.task, args), *outer))


def kept(path: str | None) -> dict[str, dict[str, Any]]:
    if path is None or not Path(path).exists():
        return {}
    return dict(json.loads(line) for line in Path(path).read_text().splitlines())


def cases(args: argparse.Namespace) -> list[Case]:
    all_cases = []
    for task in ("cifar", "text") if args.task == "both" else (args.task,):
        text = task == "text"
        small, large, most, lr, eta, periods = {
            "text": (args.text_small, args.text_large, args.text_most, args.text_lr, args.text_eta, args.text_periods),
            "cifar": (args.small, args.large, args.most, args.lr, args.eta, args.periods),
            "digits": (16, 128, 128, 0.1, args.eta, [8]),
        }[task]
        law = args.text_scaling if text else args.scaling
        equal = round(small / args.rounds)
        annealed = eq.batch.Annealed(start=small, rounds=args.rounds, power=args.power, scale_lr=law)
        scaled, equal_lr = (lr * gain(law, size / small, small * WORKERS, None) for size in (large, equal))
        paper = eq.batch.NormTest(start=small, most=large, eta=args.paper_eta)
        steady = eq.batch.NormTest(
            start=small, most=most, eta=eta, gradient="first", debias=True, smoothing=0.95, growth=1.1, shrink=True
        )
        for period in periods:
            rarer = eq.period.AnnealedPeriod(steps=period, rounds=args.rounds)
            longer = round(period / args.rounds)
            rules: dict[str, tuple[Any, ...]] = {}
            for f in args.factors:
                own, its = ("" if f == 1 else f", rate {f * rate:.3g}" for rate in (lr, equal_lr))
                rules[f"constant {small}{own}"] = (eq.batch.Fixed(small), f * lr)
                rules[f"constant {equal}{its}"] = (eq.batch.Fixed(equal), f * equal_lr)
                rules[f"annealed, {args.rounds:.2g} of the rounds{own}"] = (annealed, f * lr)
                rules[f"constant {small}, annealed period{own}"] = (eq.batch.Fixed(small), f * lr, rarer)
                rules[f"constant {small}, H = {longer}{own}"] = (eq.batch.Fixed(small), f * lr, longer)
            rules[f"constant {large}"] = (eq.batch.Fixed(large), scaled)
            rules[f"norm test, paper, eta {args.paper_eta:g}"] = (paper, lr)
            if task == "digits":
                rules["norm test, defaults, rate unscaled"] = (eq.batch.NormTest(start=small), lr)
            rules[f"norm test, steady, eta {eta:g}"] = (steady, lr)
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                for name, (rule, rate, *every) in rules.items():
                    name += f", outer {args.outer:g}" if args.outer else ""
                    all_cases.append(Case(task, period, name, seed, rule, rate, *(every or [period])))
    return [case for case in all_cases if any(re.search(word, case.name) for word in args.only)]


def table(task: str, rows: dict[tuple[int, str], list[dict[str, Any]]]) -> dict[str, float]:
    """Print means over seeds, the spread of the quality, and the goals of both tests."""
    text = task == "text"
    titles = {"text": "WikiText-2, transformer, AdamW", "digits": "digits, MLP, SGD"}
    print(f"\n{titles.get(task, 'CIFAR-10, CNN, SGD with momentum')}")
    metric = "loss" if text else "acc. %"
    print(
        f"  {'H':>3}  {'local batch':<28} {metric:>8} {'+-':>6} {'steps':>7} {'rounds':>7} "
        f"{'MB sent':>9} {'avg. batch':>11}"
    )
    means: dict[tuple[int, str], dict[str, float]] = {}
    for (period, name), seeds in rows.items():
        r = means[period, name] = {k: statistics.mean(s[k] for s in seeds) for k in seeds[0] if k != "curve"}
        spread = statistics.stdev(s["quality"] for s in seeds) if len(seeds) > 1 else math.nan
        print(
            f"  {period:>3}  {name:<28} {r['quality']:8.3f} {spread:6.3f} {r['steps']:7.0f} {r['rounds']:7.0f} "
            f"{r['megabytes']:9.1f} {r['batch']:11.1f}"
        )
    ratios = {}
    for period in dict.fromkeys(p for p, _ in rows):
        small, *others = ((name, r) for (p, name), r in means.items() if p == period)
        for name, r in others:
            parts = r["rounds"] / max(1, small[1]["rounds"])
            lost = r["quality"] / small[1]["quality"] - 1 if text else small[1]["quality"] - r["quality"]
            met = "met" if parts <= 1 / 3 and lost <= (0.01 if text else 0.3) else "MISSED"
            unit = "of the loss" if text else "points"
            print(
                f"  H = {period}: {name}: {parts:.3f} of the small batch's rounds, loses {lost:.3f} {unit}: goal {met}"
            )
            ratios[f"{task}, H = {period}, {name}: rounds / small"] = parts
            ratios[f"{task}, H = {period}, {name}: lost"] = lost
    return ratios


def keep_table(tasks: dict[str, dict[tuple[int, str], list[dict[str, Any]]]], path: Path) -> None:
    """{"TASK, H = PERIOD": {rule: {quantity: one value per seed}}}, beside what the file has."""
    known = json.loads(path.read_text()) if path.exists() else {}
    for task, rows in tasks.items():
        for (period, name), seeds in rows.items():
            columns = {k: [round(s[k], 4) for s in seeds] for k in ("quality", "rounds", "megabytes", "batch")}
            known.setdefault(f"{task}, H = {period}", {})[name] = columns
    path.write_text(json.dumps(known, indent=1) + "\n")


def draw(rows: dict[str, dict[tuple[int, str], list[dict[str, Any]]]], path: str) -> None:
    """Quality against rounds, one panel per task and H, means over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [(task, period) for task, all_cases in rows.items() for period in dict.fromkeys(p for p, _ in all_cases)]
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.4), squeeze=False)
    for plot, (task, period) in zip(axes[0], panels, strict=True):
        for (p, name), seeds in rows[task].items():
            if p == period:
                means = [
                    [statistics.mean(v) for v in zip(*points, strict=True)]
                    for points in zip(*(s["curve"] for s in seeds), strict=True)
                ]
                plot.plot(*zip(*means, strict=True), marker=".", label=name)
        plot.set_xlabel("rounds")
        plot.set_xscale("log")
        plot.set_title(f"{'CIFAR-10' if task == 'cifar' else 'WikiText-2'}, H = {period}")
        plot.set_ylabel("accuracy %" if task == "cifar" else "loss")
        plot.grid(alpha=0.3)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def numbers(text: str) -> list[int]:
    return [int(value) for value in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--task", choices=("both", "cifar", "text", "digits"), default="both")
    parser.add_argument("--full", action="store_true", help="images of 32 x 32, all windows and words, more epochs")
    parser.add_argument("--periods", type=numbers, default=[4, 16, 32])
    parser.add_argument("--paper-eta", type=float, default=0.9)
    parser.add_argument("--eta", type=float, default=2.2, help="of the steady test")
    parser.add_argument("--scaling", default="linear", choices=("none", "linear", "sqrt"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0, help="10 for choosing rates: it is in no table")
    parser.add_argument("--only", nargs="+", default=[""], help="rules whose name has one of these patterns in it")
    parser.add_argument("--rounds", type=float, default=1 / 3, help="of the small batch's, for the annealed batch")
    parser.add_argument("--power", type=float, default=0.5, help="of the annealed batch")
    parser.add_argument("--outer", type=float, default=0.0, help="momentum of an outer step at every round (DiLoCo)")
    parser.add_argument(
        "--factors", type=lambda text: [float(f) for f in text.split(",")], default=[1.0], help="of the rivals' rates"
    )
    parser.add_argument("--small", type=int, default=8)
    parser.add_argument("--large", type=int, default=64)
    parser.add_argument("--most", type=int, default=64, help="of the steady test")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--side", type=int, default=16, choices=(8, 16, 32), help="of the images")
    parser.add_argument("--examples", type=int)
    parser.add_argument("--tests", type=int)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--text-small", type=int, default=4)
    parser.add_argument("--text-large", type=int, default=32)
    parser.add_argument("--text-most", type=int, default=32)
    parser.add_argument("--text-eta", type=float, default=2.2)
    parser.add_argument("--text-lr", type=float, default=2e-3)
    parser.add_argument("--text-scaling", default="sqrt", choices=("none", "linear", "sqrt"))
    parser.add_argument("--text-periods", type=numbers, default=[16])
    parser.add_argument("--digits-epochs", type=float, default=60)
    parser.add_argument("--text-epochs", type=float, default=3)
    parser.add_argument("--windows", type=int, default=4_000)
    parser.add_argument("--vocabulary", type=int, default=2_000)
    parser.add_argument("--rows", metavar="FILE", help="keep runs there as they end, and take those that it has")
    parser.add_argument("--plot", metavar="FILE", help="draw quality against rounds")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--table", metavar="FILE", help="add what was measured to this file, for docs/make_tables.py")
    args = parser.parse_args()
    if args.data_dir is None and args.task != "digits":
        parser.error("--data-dir is needed for CIFAR-10 and WikiText-2")
    if args.full:
        args.side, args.epochs, args.windows, args.text_epochs, args.vocabulary = 32, 40, None, 10, 10_000
    started, all_cases = time.time(), cases(args)
    rows = kept(args.rows)
    missing = [case for case in all_cases if key(case, args) not in rows]
    for task in {case.task for case in missing}:
        load(task, args)
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        # The runs with the most steps first: the last ones to end are short.
        jobs = sorted(missing, key=lambda c: (c.task != "text", "constant" not in c.name))
        for done, (case, row) in enumerate(pool.imap_unordered(one, [(case, args) for case in jobs])):
            rows[key(case, args)] = row
            print(
                f"  {done + 1}/{len(missing)} {case.task} H {case.period} {case.name}: {row['quality']:.3f}", flush=True
            )
            if args.rows:
                with Path(args.rows).open("a") as file:
                    file.write(json.dumps([key(case, args), row]) + "\n")
    tasks: dict[str, dict[tuple[int, str], list[dict[str, Any]]]] = {}
    for case in all_cases:
        tasks.setdefault(case.task, {}).setdefault((case.period, case.name), []).append(rows[key(case, args)])
    ratios: dict[str, float] = {}
    for task, means in tasks.items():
        ratios |= table(task, means)
    if args.table:
        keep_table(tasks, Path(args.table))
    if args.plot:
        draw(tasks, args.plot)
    print(f"\n{time.time() - started:.0f} s, {args.seeds} seed{'s' if args.seeds > 1 else ''}")
    if args.json:
        Path(args.json).write_text(
            json.dumps({k: v if math.isfinite(v) else None for k, v in ratios.items()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
