"""GRAWA against its competitors on CIFAR-10: test error and flatness after the same time, with how many rounds and bytes.

    python grawa_cifar10.py --data-dir DIR                              # about 10 minutes on 2 cores
    python grawa_cifar10.py --data-dir DIR --model vgg --workers 8
    python grawa_cifar10.py --data-dir DIR --processes                  # 4 real processes and real seconds instead
    python grawa_cifar10.py --data-dir DIR --full                       # 50,000 images, wider nets: many hours

All methods train for the same simulated seconds on one described cluster (equal workers, slow links), with SGD, Nesterov
momentum and a cosine schedule over the time. Each has its own grid of learning rate, period and pull; the best by the
error on held-out training images, with a seed of its own, runs with every other seed and is tested. The mean model is
tested, with BatchNorm recomputed (EASGD: the centre); flatness is that of the mean model on fixed training images in eval mode.
The ablation varies one option of the chosen LGRAWA at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.comm.network import Cluster, Link
from equipoise.data import CIFAR10
from equipoise.data.base import Arrays, Loaded
from equipoise.errors import NonFinite
from equipoise.flatness import Surface, gradient_norm, largest_eigenvalue, trace
from equipoise.loop.schedule import Schedule
from equipoise.models import VGG, ResNet


class Setting(NamedTuple):
    method: str
    sync: Any
    period: int = 1
    lr: float = 0.1
    sam: float | None = None


def grid() -> list[Setting]:
    """Around the choices of the authors' script: EASGD and LSGD every 4 steps, GRAWA every 32."""
    found = [Setting("DP", eq.sync.AllReduce(), lr=lr) for lr in (0.05, 0.1, 0.2)]
    found += [Setting("DP+SAM", eq.sync.AllReduce(), lr=lr, sam=0.05) for lr in (0.05, 0.1, 0.2)]
    found += [Setting("EASGD", eq.sync.EASGD(pull=p), 4, lr) for p, lr in ((0.4, 0.1), (0.9, 0.1), (0.9, 0.05))]
    found += [Setting("LSGD", eq.sync.LSGD(pull=p, prox=0.1), 4, lr) for p, lr in ((0.1, 0.1), (0.3, 0.1), (0.1, 0.05))]
    for name, make in (("MGRAWA", eq.sync.MGRAWA), ("LGRAWA", eq.sync.LGRAWA)):
        for pull, lr in ((0.5, 0.1), (0.9, 0.1), (0.5, 0.05)):
            found.append(Setting(name, make(pull=pull, prox=0.01), 32, lr))
    return found


def ablation(chosen: Setting) -> list[Setting]:
    """One option of the chosen method at a time."""
    variants: dict[str, dict[str, Any]] = {
        "fresh batch": {"source": "fresh"},
        "fresh batch of 256": {"source": "fresh", "examples": 256},
        "fresh batch of 256, debiased": {"source": "fresh", "examples": 256, "debias": True},
        "exponent 0 (plain average)": {"exponent": 0.0},
        "exponent 2": {"exponent": 2.0},
        "no proximity": {"prox": 0.0},
    }
    return [
        chosen._replace(method=f"{chosen.method}, {name}", sync=dataclasses.replace(chosen.sync, **options))
        for name, options in variants.items()
    ]


class Task(NamedTuple):
    setting: Setting
    seed: int
    held_out: bool  # tune on held-out training images, or test


CACHE: dict[str, Any] = {}


def load(args: argparse.Namespace) -> dict[str, Any]:
    """Train, held-out and test images, averaged down to `side` pixels."""
    if not CACHE:
        loaded = CIFAR10(dir=args.data_dir, limit=args.examples + args.held_out, test_limit=args.test).load()

        def small(part: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
            x = part.x if args.side == 32 else nn.functional.adaptive_avg_pool2d(part.x, args.side)
            return x, part.y

        x, y = small(loaded.train)
        CACHE["train"], CACHE["held"] = (
            (x[: args.examples], y[: args.examples]),
            (x[args.examples :], y[args.examples :]),
        )
        CACHE["test"] = small(loaded.test)
        shape = (3, args.side, args.side)
        CACHE["loaded"] = Loaded(Arrays(*CACHE["train"]), Arrays(*CACHE["test"]), "classify", 10, shape)
    return CACHE


def build(args: argparse.Namespace, seed: int) -> nn.Module:
    model = ResNet(width=args.width) if args.model == "resnet" else VGG(width=args.width, hidden=8 * args.width)
    torch.manual_seed(seed)
    return model.build(load(args)["loaded"])


def words_of(setting: Setting) -> str:
    """What differs from the defaults."""
    plain = type(setting.sync)().options()
    chosen = {name: value for name, value in setting.sync.options().items() if value != plain[name]}
    every = {"lr": setting.lr} | ({"period": setting.period} if setting.period > 1 else {}) | chosen
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in every.items()
    )


def one(job: tuple[Task, argparse.Namespace]) -> dict[str, Any]:
    (setting, seed, held_out), args = job
    torch.set_num_threads(1)
    data = load(args)
    real = args.processes
    cluster = None if real else Cluster([args.rate] * args.workers, Link(args.mbit * 1e6, args.latency / 1e3))
    row: dict[str, Any] = {"method": setting.method, "seed": seed, "held_out": held_out, "error": 1.0}
    row["choice"] = words_of(setting)
    try:
        run = eq.train(
            lambda: build(args, seed),
            nn.CrossEntropyLoss(),
            data["train"],
            test=data["held" if held_out else "test"],
            optimizer=lambda p: torch.optim.SGD(p, lr=setting.lr, momentum=0.9, nesterov=True, weight_decay=5e-4),
            scheduler=lambda optimizer: Schedule(optimizer, "cosine", 0.05),
            workers=args.workers,
            budget=args.budget,
            batch=args.batch,
            period=setting.period,
            sync=setting.sync,
            sam=setting.sam,
            seed=seed,
            virtual=not real,
            cluster=cluster,
            buffers="recompute",
            evaluate_every=10**6,
        )
    except NonFinite:
        return row
    result, models = run.result, run.result["models"]
    row["error"] = 1.0 - models["centre" if setting.method == "EASGD" else "mean"]["accuracy"]
    row["local"] = 1.0 - models["local"]["accuracy"]
    row |= {key: result[key] for key in ("steps", "rounds", "bytes", "consensus")}
    row["weight"] = result["health"].get("largest_weight")
    if not held_out:
        surface = Surface(run.model, nn.CrossEntropyLoss(), data["train"], examples=args.flatness)
        row["eigenvalue"] = largest_eigenvalue(surface, most=20)._asdict()
        row["trace"] = trace(surface, probes=10)._asdict()
        row["gradient"] = gradient_norm(surface)._asdict()
    return row


def run_all(tasks: list[Task], args: argparse.Namespace, words: str) -> list[dict[str, Any]]:
    started, rows = time.time(), []
    jobs = [(task, args) for task in tasks]
    with contextlib.ExitStack() as stack:
        # Processes of a run are its workers: then one run at a time, from here.
        pool = None if args.processes else stack.enter_context(multiprocessing.get_context("fork").Pool(args.jobs))
        for number, row in enumerate(pool.imap(one, jobs) if pool is not None else map(one, jobs), 1):
            rows.append(row)
            text = f"{row['method']:<38} seed {row['seed']} error {row['error']:.4f}  {row['choice']}"
            print(f"  {words} {number}/{len(tasks)} {text}", flush=True)
    print(f"  {words}: {time.time() - started:.0f} s")
    return rows


def table(rows: list[dict[str, Any]], seeds: list[int]) -> None:
    head = "".join(f"  seed {seed:<5}" for seed in seeds)
    print(f"\n  {'test error':<38}{head}   mean     eigenvalue      trace      |g|      rounds  megabytes")
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = sorted((r for r in rows if r["method"] == name), key=lambda r: r["seed"])
        errors = [r["error"] for r in mine]
        line = f"  {name:<38}" + "".join(f"  {e:.4f}    " for e in errors) + f"  {statistics.mean(errors):.4f}"
        whole = [r for r in mine if "trace" in r]
        if whole:
            for key, width in (("eigenvalue", 14), ("trace", 13), ("gradient", 9)):
                line += f"{statistics.mean(r[key]['value'] for r in whole):{width}.4g}"
            line += f"{statistics.mean(r['rounds'] for r in whole):10.0f}"
            line += f"{statistics.mean(r['bytes'] for r in whole) / 1e6:11.1f}"
        print(line)


def verdict(rows: list[dict[str, Any]], seeds: list[int]) -> dict[str, float]:
    """Is MGRAWA or LGRAWA ahead of all others in every seed, with an eighth of EASGD's rounds?"""
    error = {(r["method"], r["seed"]): r["error"] for r in rows}
    others = [name for name in dict.fromkeys(r["method"] for r in rows) if not name.endswith("GRAWA")]
    ratios = {}
    print()
    for name in ("MGRAWA", "LGRAWA"):
        ahead = [seed for seed in seeds if error[name, seed] < min(error[other, seed] for other in others)]
        best = min(others, key=lambda other: statistics.mean(error[other, s] for s in seeds))
        ratio = statistics.mean(error[name, s] for s in seeds) / statistics.mean(error[best, s] for s in seeds)
        words = f"ahead of all others in {len(ahead)} of {len(seeds)} seeds; error / error of {best}, the best of them"
        print(f"  {name}: {words}: {ratio:.3f}")
        ratios[f"{name} error / best other"] = ratio
        rounds = {
            m: statistics.mean(r["rounds"] for r in rows if r["method"] == m and "rounds" in r) for m in (name, "EASGD")
        }
        ratios[f"{name} rounds / EASGD rounds"] = rounds[name] / rounds["EASGD"]
        print(f"  {name}: rounds / rounds of EASGD: {rounds[name] / rounds['EASGD']:.3f} (goal at most 0.125)")
    return ratios


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--full", action="store_true", help="all images at full size, width 16, ten times the time")
    parser.add_argument("--model", choices=("resnet", "vgg"), default="resnet")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--held-out", type=int, default=1024)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--side", type=int, default=16, help="pixels; 32 is the original")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--budget", type=float, default=16.0, help="seconds of each run, simulated (real with --processes)"
    )
    parser.add_argument("--rate", type=float, default=1000.0, help="examples per simulated second of a worker")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--latency", type=float, default=1.0, help="milliseconds")
    parser.add_argument("--flatness", type=int, default=256, help="examples that flatness is measured on")
    parser.add_argument("--no-ablation", action="store_true")
    parser.add_argument("--processes", action="store_true", help="real processes and real seconds")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--out", default="grawa-cifar10.json", help="every run with all its numbers")
    args = parser.parse_args()
    if args.full:
        args.examples, args.held_out, args.test, args.side, args.width = 45_000, 5_000, 10_000, 32, 16
        args.budget, args.flatness = 20 * args.budget, 1024
    return args


def main() -> None:
    args = arguments()
    started = time.time()
    load(args)
    size = sum(p.numel() for p in build(args, 0).parameters())
    kind = (
        "real seconds on processes" if args.processes else f"simulated seconds, {args.mbit:g} Mbit, {args.latency:g} ms"
    )
    print(
        f"{args.model} with {size:,} parameters on {args.examples:,} images of {args.side} x {args.side}, "
        f"{args.workers} workers, batch {args.batch}, {args.budget:g} {kind}"
    )
    tuned = run_all([Task(setting, 100, True) for setting in grid()], args, "tuning")
    settings = grid()
    chosen = {}
    for setting, row in zip(settings, tuned, strict=True):
        known = chosen.get(setting.method)
        if known is None or row["error"] < known[1]:
            chosen[setting.method] = setting, row["error"]
    seeds = list(range(args.seeds))
    rows = run_all([Task(s, seed, False) for s, _ in chosen.values() for seed in seeds], args, "testing")
    table(rows, seeds)
    ratios = verdict(rows, seeds)
    varied: list[dict[str, Any]] = []
    if not args.no_ablation:
        variants = ablation(chosen["LGRAWA"][0])
        varied = run_all([Task(s, seed, False) for s in variants for seed in seeds], args, "ablation")
        table([r for r in rows if r["method"] == "LGRAWA"] + varied, seeds)
    Path(args.out).write_text(json.dumps({"arguments": vars(args), "tuning": tuned, "rows": rows, "ablation": varied}))
    print(f"\n{time.time() - started:.0f} s; every run in {args.out}")
    if args.json:
        Path(args.json).write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
