"""Adaptive local batches against constant small and large ones: accuracy (or loss), steps, rounds, bytes, average batch.

    python adaptive_batch.py --data-dir DIR                       # both tasks, about 8 minutes on 2 cores
    python adaptive_batch.py --data-dir DIR --task cifar --full   # 50,000 examples, 40 epochs, 3 seeds: hours

CIFAR-10 with LeNet and momentum SGD for H = 4, 16, 32; WikiText-2 with a small transformer and AdamW for H = 16 (trained on
its validation part and tested on its test part: the training part is not at hand). 4 virtual workers. All
runs see as many samples and follow one law for the learning rate, lr(b) = lr (b / b_0)^p by `--scaling`, warmed up and
decayed by samples. The norm test is the paper's, with the measured norm, and a steadier one: debiased, smoothed, slow to grow. Goal: the small batch's accuracy to within 0.3 points (its loss to within 1 %) with at most a third
of its rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.assemble import language_loss
from equipoise.data import CIFAR10, Text
from equipoise.loop.schedule import Schedule, gain
from equipoise.models import LeNet, Transformer

WORKERS = 4
CACHE: dict[str, Any] = {}


class Case(NamedTuple):
    task: str
    period: int
    name: str
    seed: int
    batch: Any
    lr: float


def load(task: str, args: argparse.Namespace) -> Any:
    if task not in CACHE:
        where = Path(args.data_dir)
        if task == "cifar":
            CACHE[task] = CIFAR10(dir=str(where), limit=args.examples, test_limit=args.tests).load()
        else:
            CACHE[task] = Text(
                path=str(where / "wikitext2-valid.txt"),
                test_path=str(where / "wikitext2-test.txt"),
                vocabulary=args.vocabulary,
                limit=args.windows,
            ).load()
    return CACHE[task]


def one(job: tuple[Case, argparse.Namespace]) -> tuple[Case, dict[str, Any]]:
    case, args = job
    torch.set_num_threads(1)
    data = load(case.task, args)
    text = case.task == "text"

    def model() -> nn.Module:
        torch.manual_seed(case.seed)
        return (Transformer() if text else LeNet()).build(data)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        if text:
            return torch.optim.AdamW(parameters, lr=case.lr, weight_decay=0.01)
        return torch.optim.SGD(parameters, lr=case.lr, momentum=0.9, weight_decay=5e-4)

    run = eq.train(
        model,
        language_loss if text else nn.CrossEntropyLoss(),
        data.train,
        test=(data.test.x[: args.tests // 10 if text else None], data.test.y[: args.tests // 10 if text else None]),
        optimizer=optimizer,
        scheduler=lambda o: Schedule(o, "cosine", 0.1, args.text_scaling if text else args.scaling),
        workers=WORKERS,
        epochs=args.text_epochs if text else args.epochs,
        batch=case.batch,
        period=case.period,
        sync=eq.sync.PeriodicAverage(),
        seed=case.seed,
        evaluate_every=10**6,
        log_every=1000,
    )
    result, mean = run.result, run.result["models"]["mean"]
    return case, {
        "quality": mean["loss"] if text else 100 * mean["accuracy"],
        "steps": result["steps"],
        "rounds": result["rounds"],
        "megabytes": result["bytes"] / 1e6,
        "batch": result["samples"] / result["steps"] / WORKERS,
    }


def cases(args: argparse.Namespace) -> list[Case]:
    found = []
    for task in ("cifar", "text") if args.task == "both" else (args.task,):
        text = task == "text"
        small, large = (args.text_small, args.text_large) if text else (args.small, args.large)
        lr = args.text_lr if text else args.lr
        scaled = lr * gain(args.text_scaling if text else args.scaling, large / small, small * WORKERS, None)
        for period in [args.text_period] if text else args.periods:
            for seed in range(args.seeds):
                found.append(Case(task, period, f"constant {small}", seed, eq.batch.Fixed(small), lr))
                found.append(Case(task, period, f"constant {large}", seed, eq.batch.Fixed(large), scaled))
                rules = {
                    f"norm test, eta {eta:g}": eq.batch.NormTest(start=small, most=large, eta=eta) for eta in args.etas
                }
                for eta in args.debiased:
                    rule = eq.batch.NormTest(start=small, most=large, eta=eta, debias=True, smoothing=0.9, growth=1.15)
                    rules[f"norm test, debiased, eta {eta:g}"] = rule
                found += [Case(task, period, name, seed, rule, lr) for name, rule in rules.items()]
    return found


def table(task: str, rows: dict[tuple[int, str], dict[str, float]]) -> dict[str, float]:
    """Print means over seeds; the ratios of the goals, each with the adaptive run of the fewest rounds that keeps the quality."""
    text = task == "text"
    print("\nWikiText-2, transformer, AdamW" if text else "\nCIFAR-10, LeNet, SGD with momentum")
    metric = "loss" if text else "acc. %"
    print(f"  {'H':>3}  {'local batch':<28} {metric:>8} {'steps':>7} {'rounds':>7} {'MB sent':>9} {'avg. batch':>11}")
    for (period, name), r in rows.items():
        print(
            f"  {period:>3}  {name:<28} {r['quality']:8.3f} {r['steps']:7.0f} {r['rounds']:7.0f} {r['megabytes']:9.1f} {r['batch']:11.1f}"
        )
    ratios = {}
    for period in dict.fromkeys(p for p, _ in rows):
        here = {name: r for (p, name), r in rows.items() if p == period}
        small = next(iter(here.values()))
        adaptive = {name: r for name, r in here.items() if name.startswith("norm")}

        def lost(r: dict[str, float], small: dict[str, float] = small) -> float:
            return r["quality"] / small["quality"] - 1 if text else small["quality"] - r["quality"]

        allowed = 0.01 if text else 0.3
        kept = [name for name, r in adaptive.items() if lost(r) <= allowed]
        chosen = min(kept or adaptive, key=lambda name: adaptive[name]["rounds"])
        parts, points = adaptive[chosen]["rounds"] / max(1, small["rounds"]), lost(adaptive[chosen])
        met = "met" if parts <= 1 / 3 and points <= allowed else "MISSED"
        unit = "of the loss" if text else "points"
        print(
            f"  H = {period}: {chosen} takes {parts:.3f} of the small batch's rounds and loses {points:.3f} {unit}: goal {met}"
        )
        ratios[f"{task}, H = {period}: rounds adaptive / small"] = parts
        ratios[f"{task}, H = {period}: lost"] = points
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--task", choices=("both", "cifar", "text"), default="both")
    parser.add_argument("--full", action="store_true", help="all examples, more epochs, three seeds")
    parser.add_argument("--periods", type=lambda t: [int(v) for v in t.split(",")], default=[4, 16, 32])
    parser.add_argument("--etas", type=lambda t: [float(v) for v in t.split(",")], default=[0.9])
    parser.add_argument(
        "--debiased",
        type=lambda t: [float(v) for v in t.split(",")],
        default=[3.0],
        help="etas of the debiased, smoothed test",
    )
    parser.add_argument("--scaling", default="linear", choices=("none", "linear", "sqrt"))
    parser.add_argument("--text-scaling", default="sqrt", choices=("none", "linear", "sqrt"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--small", type=int, default=16)
    parser.add_argument("--large", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--epochs", type=float, default=12)
    parser.add_argument("--text-small", type=int, default=4)
    parser.add_argument("--text-large", type=int, default=32)
    parser.add_argument("--text-lr", type=float, default=2e-3)
    parser.add_argument("--text-period", type=int, default=16)
    parser.add_argument("--text-epochs", type=float, default=3)
    parser.add_argument("--windows", type=int, default=4_000)
    parser.add_argument("--vocabulary", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    args = parser.parse_args()
    if args.full:
        args.examples = args.windows = None  # type: ignore[assignment]
        args.tests, args.epochs, args.text_epochs, args.seeds, args.vocabulary = 10_000, 40, 10, 3, 10_000
    started, found = time.time(), cases(args)
    for task in {case.task for case in found}:
        load(task, args)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        # The runs with the most steps first: the last ones to end are short.
        jobs = sorted(found, key=lambda c: (c.task != "text", "constant" not in c.name))
        for case, row in pool.imap_unordered(one, [(case, args) for case in jobs]):
            rows[case[:4]] = row
            print(
                f"  {len(rows)}/{len(found)} {case.task} H {case.period} {case.name}: {row['quality']:.3f}", flush=True
            )
    ratios: dict[str, float] = {}
    for task in dict.fromkeys(case.task for case in found):
        means: dict[tuple[int, str], dict[str, float]] = {}
        for case in found:
            if case.task == task and (case.period, case.name) not in means:
                same = [rows[c[:4]] for c in found if c[:3] == case[:3]]
                means[case.period, case.name] = {k: statistics.mean(r[k] for r in same) for k in same[0]}
        ratios |= table(task, means)
    print(f"\n{time.time() - started:.0f} s, {args.seeds} seed{'s' if args.seeds > 1 else ''}")
    if args.json:
        Path(args.json).write_text(
            json.dumps({k: v if math.isfinite(v) else None for k, v in ratios.items()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
