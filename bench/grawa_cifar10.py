"""GRAWA and its competitors on CIFAR-10: test error, flatness, rounds and bytes after the same time.

    python grawa_cifar10.py --data-dir DIR --out resnet.json            # tunes and tests: about 40 minutes on one core
    python grawa_cifar10.py --data-dir DIR --settings resnet.json --workers 8 --out eight.json    # tests those settings
    python grawa_cifar10.py --data-dir DIR --model vgg --width 6 --workers 8 --budget 3.25 --out vgg.json
    python grawa_cifar10.py --data-dir DIR --model vgg --width 6 --workers 8 --budget 3.25 --settings vgg.json --free
    python grawa_cifar10.py --data-dir DIR --settings resnet.json --processes --budget 7   # 4 processes, real time
    python grawa_cifar10.py --data-dir DIR --full                       # 50,000 images, wider nets: many hours

All methods train for the same simulated time on one described cluster: equal workers of 2,000 examples per second,
links of 100 Mbit and 1 ms, so that a round of the small ResNet takes as long as a step. SGD with Nesterov momentum
and a cosine schedule over the time. Each method is tuned on held-out training images with a separate seed: first
period and pull together at the learning rate of `--lr` (DP: the rate), then, from the best of these, the learning rate
and the proximity (DP+SAM: its radius), one at a time. Whether the mean or the centre is tested is chosen in the same
way. The best setting runs with every other seed and is tested with recomputed BatchNorm statistics. Flatness is
measured at the mean model on fixed training images in eval mode. If the best period of GRAWA is less than eight times
that of EASGD, the best setting with such a period is tested as well. The ablation varies one option of the better of
MGRAWA and LGRAWA at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import multiprocessing
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import NonFinite
from equipoise.data import CIFAR10
from equipoise.data.base import Arrays, LoadedData
from equipoise.flatness import Surface, gradient_norm, largest_eigenvalue, trace
from equipoise.loop.lr_schedule import LRSchedule
from equipoise.models import VGG, ResNet
from equipoise.simulate.cluster import Cluster, Link

CLASSES = (eq.sync.AllReduce, eq.sync.PeriodicAverage, eq.sync.EASGD, eq.sync.LSGD, eq.sync.MGRAWA, eq.sync.LGRAWA)
SYNCS = {c.__name__: c for c in CLASSES}
RARE = ", an eighth of EASGD's rounds"


class Setting(NamedTuple):
    method: str
    sync: Any
    period: int = 1
    lr: float = 0.1
    sam: float | None = None
    model: str = "mean"  # that is tested

    def plain(self) -> dict[str, Any]:
        return self._asdict() | {"sync": [type(self.sync).__name__, self.sync.options()]}

    @classmethod
    def of(cls, table: dict[str, Any]) -> Setting:
        name, options = table["sync"]
        return cls(**table | {"sync": SYNCS[name](**options)})


def coarse(short: bool, usual_lr: float) -> list[Setting]:
    """Period and pull; the authors use EASGD and LSGD every 4 steps, GRAWA every 32. The same number of trials each."""
    rates = [usual_lr * factor for factor in ((1.0, 2.0) if short else (0.5, 1.0, 2.0))]
    candidates = [Setting("DP", eq.sync.AllReduce(), lr=lr) for lr in rates]
    candidates += [Setting("DP+SAM", eq.sync.AllReduce(), lr=lr, sam=0.05) for lr in rates]
    for name, periods, usual, other in (
        ("EASGD", (2, 4, 8, 16), 0.9, 0.4),
        ("LSGD", (4, 8, 16, 32), 0.1, 0.5),
        ("MGRAWA", (4, 8, 16, 32), 1.0, 0.5),
        ("LGRAWA", (4, 8, 16, 32), 1.0, 0.5),
    ):
        for period in periods[:3] if short else periods:
            for pull in (usual, other) if period in periods[::2] and not short else (usual,):
                candidates.append(Setting(name, SYNCS[name](pull=pull), period, usual_lr))
    few = (2, 4, 8) if short else (2, 4, 8, 16)
    candidates += [Setting("Local SGD", eq.sync.PeriodicAverage(), period, usual_lr) for period in few]
    for name in ("MGRAWA", "LGRAWA"):
        for words, more in (("delay 1", {"delay": 1}), ("shrink", {"shrink": True})):
            sync = SYNCS[name](pull=1.0, **more)
            candidates += [Setting(f"{name}, {words}", sync, period, usual_lr) for period in few]
    return candidates


def fine(best: Setting, short: bool) -> list[Setting]:
    """One step from the best of those."""
    candidates = [best._replace(lr=best.lr * factor) for factor in (0.5, 2.0)]
    if best.method == "DP" or short:
        return candidates
    if best.method == "DP+SAM":
        return candidates + [best._replace(sam=radius) for radius in (0.02, 0.1)]
    if hasattr(best.sync, "prox"):
        prox = 0.1 if best.method == "LSGD" else 0.01
        candidates.append(best._replace(sync=dataclasses.replace(best.sync, prox=prox)))
    return candidates


def ablation(chosen: Setting) -> list[Setting]:
    """One option of the chosen method at a time."""
    prox = chosen.sync.prox
    variants: dict[str, dict[str, Any]] = {
        "norm of a fresh batch": {"source": "fresh"},
        "of a fresh batch of 128": {"source": "fresh", "examples": 128},
        "of a fresh batch of 128, debiased": {"source": "fresh", "examples": 128, "debias": True},
        "exponent 0 (all weigh alike)": {"exponent": 0.0},
        "weights shrunk by their noise": {"shrink": True},
        "exponent 2": {"exponent": 2.0},
        "exponent 8": {"exponent": 8.0},
        "no proximity" if prox else "proximity 0.1": {"prox": 0.0 if prox else 0.1},
    }
    return [
        chosen._replace(method=f"{chosen.method}, {name}", sync=dataclasses.replace(chosen.sync, **options))
        for name, options in variants.items()
    ]


class Task(NamedTuple):
    setting: Setting
    seed: int
    held_out: bool = False  # tune on held-out training images, or test
    flatness: bool = True


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
        CACHE["loaded"] = LoadedData(Arrays(*CACHE["train"]), Arrays(*CACHE["test"]), "classify", 10, shape)
    return CACHE


def build(args: argparse.Namespace, seed: int) -> nn.Module:
    model = ResNet(width=args.width) if args.model == "resnet" else VGG(width=args.width, hidden=8 * args.width)
    torch.manual_seed(seed)
    return model.build(load(args)["loaded"])


def words_of(setting: Setting) -> str:
    """What differs from the defaults."""
    plain = type(setting.sync)().options()
    chosen = {name: value for name, value in setting.sync.options().items() if value != plain[name]}
    every: dict[str, Any] = {"lr": setting.lr} | ({"period": setting.period} if setting.period > 1 else {}) | chosen
    every |= ({"radius": setting.sam} if setting.sam else {}) | (
        {"model": setting.model} if setting.model != "mean" else {}
    )
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in every.items()
    )


def one(job: tuple[Task, argparse.Namespace]) -> dict[str, Any]:
    (setting, seed, held_out, flatness), args = job
    torch.set_num_threads(1)
    data = load(args)
    real = args.processes
    link = Link() if args.free else Link(args.mbit * 1e6, args.latency / 1e3)
    cluster = None if real else Cluster([args.rate] * args.workers, link)
    row: dict[str, Any] = {"method": setting.method, "seed": seed, "held_out": held_out, "error": 1.0}
    row |= {"choice": words_of(setting), "setting": setting.plain()}
    try:
        run = eq.train(
            lambda: build(args, seed),
            nn.CrossEntropyLoss(),
            data["train"],
            test=data["held" if held_out else "test"],
            optimizer=lambda p: torch.optim.SGD(p, lr=setting.lr, momentum=0.9, nesterov=True, weight_decay=5e-4),
            scheduler=lambda optimizer: LRSchedule(optimizer, "cosine", 0.05),
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
    if run.stopped:  # by a signal: no result
        raise SystemExit(128 + run.stopped)
    result, models = run.result, run.result["models"]
    row["errors"] = {name: 1.0 - metrics["accuracy"] for name, metrics in models.items()}
    row["error"] = row["errors"][setting.model]
    row |= {key: result[key] for key in ("steps", "rounds", "bytes", "consensus")}
    row["weight"] = result["health"].get("largest_weight")
    if flatness:
        surface = Surface(run.model, nn.CrossEntropyLoss(), data["train"], examples=args.flatness)
        row["eigenvalue"] = largest_eigenvalue(surface, most=15)._asdict()
        row["trace"] = trace(surface, probes=8)._asdict()
        row["gradient"] = gradient_norm(surface)._asdict()
    return row


def key(task: Task, args: argparse.Namespace) -> str:
    """A task and all that its result depends on. Its name is not among that."""
    about = ("model", "workers", "examples", "held_out", "test", "side", "width", "batch", "budget", "rate", "mbit")
    about += ("latency", "processes", "free", *(["flatness"] if task.flatness else []))
    setting = task.setting.plain() | {"method": ""}
    return json.dumps([setting, *task[1:], [getattr(args, name) for name in about]], sort_keys=True)


def cached(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    path = Path(args.cache) if args.cache else None
    if path is None or not path.is_file():
        return {}
    return dict(json.loads(line) for line in path.read_text().splitlines())


def run_all(
    tasks: list[Task], args: argparse.Namespace, words: str, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows are added as they come: a run that is ended early keeps them. `--cache` keeps them for the next call."""
    started = time.time()
    known = cached(args)
    new = [task for task in tasks if key(task, args) not in known]
    jobs = [(task, args) for task in new]
    with contextlib.ExitStack() as stack:
        # Processes of a run are its workers: then one run at a time, from here.
        alone = args.processes or args.jobs == 1
        pool = None if alone else stack.enter_context(multiprocessing.get_context("fork").Pool(args.jobs))
        found = iter(pool.imap(one, jobs) if pool is not None else map(one, jobs))
        for number, task in enumerate(tasks, 1):
            row = known.get(key(task, args))
            if row is None:
                row = next(found)
                if args.cache:
                    with Path(args.cache).open("a") as file:
                        file.write(json.dumps([key(task, args), row]) + "\n")
            row = row | {"method": task.setting.method}
            rows.append(row)
            text = f"{row['method']:<38} seed {row['seed']} error {row['error']:.4f}  {row['choice']}"
            print(f"  {words} {number}/{len(tasks)} {text}", flush=True)
    print(f"  {words}: {time.time() - started:.0f} s")
    return rows


def table(rows: list[dict[str, Any]], seeds: list[int]) -> None:
    head = "".join(f"  seed {seed:<5}" for seed in seeds)
    print(f"\n  {'test error':<38}{head}   mean     eigenvalue      trace      |g|      rounds  megabytes  weight")
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = sorted((r for r in rows if r["method"] == name), key=lambda r: r["seed"])
        errors = [r["error"] for r in mine]
        line = f"  {name:<38}" + "".join(f"  {e:.4f}    " for e in errors) + f"  {statistics.mean(errors):.4f}"
        whole = [r for r in mine if "rounds" in r]
        if whole:
            for key, width in (("eigenvalue", 14), ("trace", 13), ("gradient", 9)):
                flat = [r[key]["value"] for r in whole if key in r]
                line += f"{statistics.mean(flat):{width}.4g}" if flat else f"{'':{width}}"
            line += f"{statistics.mean(r['rounds'] for r in whole):10.0f}"
            line += f"{statistics.mean(r['bytes'] for r in whole) / 1e6:11.1f}"
            weights = [r["weight"] for r in whole if r["weight"] is not None]
            line += f"{statistics.mean(weights):8.3f}" if weights else ""
        print(line)


def verdict(rows: list[dict[str, Any]], seeds: list[int]) -> dict[str, float]:
    """Is MGRAWA or LGRAWA ahead of all others in every seed, with an eighth of EASGD's rounds?"""
    error = {(r["method"], r["seed"]): r["error"] for r in rows}
    names = list(dict.fromkeys(r["method"] for r in rows))
    others = [name for name in names if "GRAWA" not in name]
    if not others:
        return {}
    best = min(others, key=lambda other: statistics.mean(error[other, s] for s in seeds))
    rounds = {m: statistics.mean(r.get("rounds", 0) for r in rows if r["method"] == m) for m in names}
    ratios = {}
    print()
    for name in names:
        if name in others:
            continue
        ahead = [seed for seed in seeds if error[name, seed] < min(error[other, seed] for other in others)]
        ratio = statistics.mean(error[name, s] for s in seeds) / statistics.mean(error[best, s] for s in seeds)
        fewer = rounds[name] / rounds.get("EASGD", math.nan)
        print(
            f"  {name}: ahead of all others in {len(ahead)} of {len(seeds)} seeds; "
            f"error / error of {best}, the best of them: {ratio:.3f}; "
            f"rounds / rounds of EASGD: {fewer:.3f} (goal at most 0.125)"
        )
        ratios |= {f"{name} error / best other": ratio, f"{name} rounds / EASGD rounds": fewer}
    return ratios


def better(settings: list[Setting], rows: list[dict[str, Any]]) -> tuple[Setting, float]:
    """The setting with the least held-out error, of its mean or its centre."""
    candidates = [
        (row.get("errors", {}).get(model, 1.0), number, setting._replace(model=model))
        for number, (setting, row) in enumerate(zip(settings, rows, strict=True))
        for model in ("mean", "centre")
    ]
    error, _, setting = min(candidates, key=lambda one: one[:2])
    return setting, error


def tune(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Setting]:
    """The setting of each method that is best on held-out images."""
    settings = [s for s in coarse(args.short, args.lr) if args.only is None or s.method in args.only.split(";")]
    run_all([Task(s, 100, True, False) for s in settings], args, "tuning", rows)
    methods = list(dict.fromkeys(s.method for s in settings))

    def of(method: str) -> tuple[list[Setting], list[dict[str, Any]]]:
        mine = [(s, r) for s, r in zip(settings, rows, strict=True) if s.method == method]
        return [s for s, _ in mine], [r for _, r in mine]

    def rare(method: str) -> tuple[list[Setting], list[dict[str, Any]]]:
        """As `of`, with at most an eighth of the rounds that suit EASGD."""
        least = 8 * better(*of("EASGD"))[0].period if "EASGD" in methods else 32
        mine = [(s, r) for s, r in zip(*of(method), strict=True) if s.period >= least]
        return [s for s, _ in mine], [r for _, r in mine]

    more = [
        s
        for method in methods
        for s in fine(better(*of(method))[0]._replace(model="mean"), args.short)
        if s not in settings
    ]
    for method in ("MGRAWA", "LGRAWA"):
        if rare(method)[0]:
            more += [s for s in fine(better(*rare(method))[0]._replace(model="mean"), args.short) if s not in more]
    settings += more
    run_all([Task(s, 100, True, False) for s in more], args, "refining", rows)
    chosen = {method: better(*of(method))[0] for method in methods}
    for method in ("MGRAWA", "LGRAWA"):
        if rare(method)[0] and (best := better(*rare(method))[0]) != chosen[method]:
            chosen[method + RARE] = best._replace(method=method + RARE)
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--full", action="store_true", help="all images at full size, width 16, ten times the time")
    parser.add_argument("--model", choices=("resnet", "vgg"), default="resnet")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--held-out", type=int, default=2048)
    parser.add_argument("--test", type=int, default=5000)
    parser.add_argument("--side", type=int, default=16, help="pixels; 32 is the original")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--budget", type=float, default=6.5, help="seconds of each run, simulated (real with --processes)"
    )
    parser.add_argument("--rate", type=float, default=2000.0, help="examples per simulated second of a worker")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--latency", type=float, default=1.0, help="milliseconds")
    parser.add_argument("--free", action="store_true", help="rounds take no time: what remains at equal steps")
    parser.add_argument("--lr", type=float, default=0.2, help="learning rate at which periods and pulls are tuned")
    parser.add_argument("--only", help="the methods to tune and to test, with semicolons between them")
    parser.add_argument(
        "--flatness", type=int, default=256, help="examples that flatness is measured on; 0: not at all"
    )
    parser.add_argument("--ablation", action="store_true", help="vary MGRAWA or LGRAWA as well, whichever is better")
    parser.add_argument("--short", action="store_true", help="search over three periods and the learning rate only")
    parser.add_argument(
        "--settings", metavar="FILE", help="take each method's choices from what --out of another run wrote"
    )
    parser.add_argument("--processes", action="store_true", help="real processes and real seconds")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument(
        "--cache", metavar="FILE", help="keep finished runs here, and do not repeat those that are there"
    )
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
        "real seconds on processes"
        if args.processes
        else f"simulated seconds, {'free rounds' if args.free else f'{args.mbit:g} Mbit, {args.latency:g} ms'}"
    )
    print(
        f"{args.model} with {size:,} parameters on {args.examples:,} images of {args.side} x {args.side}, "
        f"{args.workers} workers, batch {args.batch}, {args.budget:g} {kind}"
    )
    out: dict[str, Any] = {"arguments": vars(args), "tuning": [], "rows": [], "ablation": []}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seeds = list(range(args.seeds))
    try:
        if args.settings:
            known = json.loads(Path(args.settings).read_text())["chosen"]
            chosen = {name: Setting.of(table) for name, table in known.items()}
            if args.only is not None:
                chosen = {name: chosen[name] for name in args.only.split(";")}
        else:
            chosen = tune(args, out["tuning"])
        out["chosen"] = {name: setting.plain() for name, setting in chosen.items()}
        Path(args.out).write_text(json.dumps(out))
        tasks = [Task(s, seed, flatness=args.flatness > 0) for s in chosen.values() for seed in seeds]
        rows = run_all(tasks, args, "testing", out["rows"])
        table(rows, seeds)
        ratios = verdict(rows, seeds)
        if args.ablation:
            mean = {m: statistics.mean(r["error"] for r in rows if r["method"] == m) for m in ("MGRAWA", "LGRAWA")}
            name = min(mean, key=lambda m: mean[m])
            tasks = [Task(s, seed, flatness=False) for s in ablation(chosen[name]) for seed in seeds]
            run_all(tasks, args, "ablation", out["ablation"])
            table([r for r in rows if r["method"] == name] + out["ablation"], seeds)
    finally:
        Path(args.out).write_text(json.dumps(out))
    print(f"\n{time.time() - started:.0f} s; every run in {args.out}")
    if args.json:
        Path(args.json).write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
