"""Seconds of training to a target accuracy: our wires beside DDP and its hooks, Accelerate, torchft and decent-dp.

    sudo python wire_time.py --data-dir DIR --out wire_time.json
    sudo python wire_time.py --data-dir DIR --out wire_time.json --rate 100mbit --speeds equal --only DDP

Four processes, each in a network namespace whose link is limited in both directions (namespaces.py). An MLP of a
million parameters on CIFAR-10, images averaged down to 16 x 16, momentum SGD, batches of 32 per worker. A batch takes
`--step-seconds` on a worker of speed 1 (sleep); speeds are 1:1:1:1 or 1:1:2:4. With unequal speeds ours take batches
in proportion to them; the peers have no such choice and wait for the slowest worker.

Tuning first: every candidate runs on an unlimited network without sleep, on a seed of its own, for all learning rates,
periods and outer steps of one grid. Steps to the target, bytes on the interface, the rate of the link and the time of a
step predict the seconds of each; the best one is run in earnest for every rate and speeds. Accuracy is that of the
workers' mean model on test images, evaluated by another process. The clock stops for snapshots only.

Candidates that send the whole model in every step take many minutes at 10 Mbit: there `~` marks seconds per step,
measured over some steps, times the steps needed at 100 Mbit. Runs are kept in `--out` as they end, and not repeated.
Peers that are not installed are left out: pip install accelerate torchft decent-dp loguru
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import namespaces
import torch
from torch import nn
from wire_time_worker import OURS, PEERS, SPEEDS, Case, network, work

WORKERS = 4
DENSE = ("DDP", "DDP + bf16 hook", "decent-dp ring", "decent-dp one-peer", "all-reduce, float32")
NEEDS = {"Accelerate": "accelerate", "torchft": "torchft", "decent-dp": "decent_dp"}
GOAL = 15.0
LRS = (0.05, 0.02)  # both where every step communicates; local steps need the smaller one
PERIODS = (16, 64)
OUTER = ((0.7, 0.9), (1.0, 0.5))
SPARSE_OUTER = ((0.7, 0.0), (1.0, 0.0))


def grid(name: str, args: argparse.Namespace) -> list[Case]:
    """What a candidate is tuned over: the same grid for peers and ours."""
    local = any(word in name for word in ("Local", "DiLoCo", "periodic"))
    lrs = LRS[1:] if local else LRS
    outer = [(1.0, 0.0)]
    if "DiLoCo" in name:
        outer = list(SPARSE_OUTER if "top-k" in name else OUTER)
    cases = [
        Case(name, "", "equal", args.tuning_seed, lr, period, *step, args.step_seconds, args.most_steps)
        for lr, period, step in itertools.product(lrs, PERIODS if local else (1,), outer)
    ]
    return cases[:1] if args.quick else cases


def key(case: Case, args: argparse.Namespace) -> str:
    return json.dumps([*case, args.target, args.examples, args.tests])


class Evaluation:
    """Reads snapshots as they appear, and knows the accuracy of the workers' mean."""

    def __init__(self, folder: Path, every: int, test: tuple[torch.Tensor, torch.Tensor]):
        self.folder, self.every, self.test = folder, every, test
        self.model = network(test[0].shape[1])
        self.curve: list[tuple[int, float, float, float]] = []  # step, seconds, accuracy, bytes sent per worker

    def newest(self) -> bool:
        """Evaluate the next snapshot if all workers have written it."""
        step = self.every * (len(self.curve) + 1)
        paths = [self.folder / f"{step}-{rank}.pt" for rank in range(WORKERS)]
        if not all(path.exists() for path in paths):
            return False
        parts = [torch.load(path) for path in paths]
        nn.utils.vector_to_parameters(torch.stack([p["x"] for p in parts]).mean(0), self.model.parameters())
        with torch.no_grad():
            accuracy = (self.model(self.test[0]).argmax(1) == self.test[1]).float().mean().item()
        sent = statistics.mean(p["sent"] for p in parts)
        self.curve.append((step, max(p["seconds"] for p in parts), accuracy, sent))
        for path in paths:
            path.unlink()
        return True


def run(case: Case, data: tuple[Any, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Start the workers, evaluate what they write, and end them when the target is reached."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        torch.save(data[0], folder / "train.data")
        evaluation = Evaluation(folder, case.every, data[1])
        processes, started, reached = start(case, folder), time.monotonic(), False
        os.nice(5)  # the evaluation gives way to the workers
        patience = args.patience
        try:
            while not reached and time.monotonic() - started < patience:
                if not evaluation.newest():
                    if any(p.poll() is not None for p in processes) and not evaluation.newest():
                        break
                    time.sleep(0.02)
                reached = bool(evaluation.curve) and evaluation.curve[-1][2] >= args.target
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                process.wait()
        errors = (folder / "errors").read_text()
    steps, seconds, accuracy, sent = evaluation.curve[-1] if evaluation.curve else (0, 0.0, 0.0, 0.0)
    return {
        **{"case": case._asdict(), "reached": reached, "seconds": seconds, "steps": steps, "accuracy": accuracy},
        "sent_per_step": sent / max(steps, 1),
        "curve": evaluation.curve,
        "errors": "" if reached else errors[-2000:],
    }


def start(case: Case, folder: Path) -> list[subprocess.Popen[str]]:
    processes = []
    for rank in range(WORKERS):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "WORLD_SIZE": str(WORKERS), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"},
            **{"MASTER_ADDR": f"{namespaces.NETWORK}.1", "MASTER_PORT": "29678"},
            "GLOO_SOCKET_IFNAME": f"{namespaces.PREFIX}i{rank}",
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(case), "--folder", str(folder)]
        with (folder / "errors").open("a") as errors:
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", f"{namespaces.PREFIX}{rank}", *command],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    text=True,
                )
            )
    return processes


class Results:
    """Runs by what decided them, in a file that is written after each."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.path = args, Path(args.out)
        self.rows: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.data: Any = None

    def get(self, case: Case) -> dict[str, Any] | None:
        return self.rows.get(key(case, self.args))

    def need(self, cases: list[Case]) -> None:
        """Run those that are missing; all of one rate."""
        missing = [case for case in cases if self.get(case) is None]
        if not missing:
            return
        self.data = self.data or load(self.args)
        namespaces.remove(WORKERS)
        try:
            namespaces.make(WORKERS, missing[0].rate)
            for number, case in enumerate(missing, 1):
                row = run(case, self.data, self.args)
                self.rows[key(case, self.args)] = row
                self.path.write_text(json.dumps(self.rows, indent=0) + "\n")
                print(f"  {number}/{len(missing)} {described(case)}: {outcome(row)}", flush=True)
                if not row["reached"] and row["errors"] and self.args.verbose:
                    print(row["errors"], flush=True)
        finally:
            namespaces.remove(WORKERS)


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    from equipoise.data import CIFAR10

    loaded = CIFAR10(dir=args.data_dir, limit=args.examples, test_limit=args.tests).load()
    shrink = nn.AvgPool2d(2)
    pairs = [(shrink(torch.as_tensor(p.x)).flatten(1), torch.as_tensor(p.y)) for p in (loaded.train, loaded.test)]
    return pairs[0], pairs[1]


def described(case: Case) -> str:
    where = f"{case.rate}, {case.speeds}, seed {case.seed}" if case.rate else "tuning"
    return f"{case.name} ({where}, {choices(case)})"


def choices(case: Case) -> str:
    words = [f"lr {case.lr:g}"]
    if case.period > 1:
        words.append(f"H {case.period}")
    if "DiLoCo" in case.name:
        words.append(f"outer {case.outer_lr:g}/{case.outer_momentum:g}")
    return ", ".join(words)


def outcome(row: dict[str, Any]) -> str:
    state = f"{row['seconds']:.1f} s" if row["reached"] else f"not reached, {100 * row['accuracy']:.1f} %"
    return f"{state}, {row['steps']} steps, {row['sent_per_step'] / 1e3:.1f} kB sent per step"


def bits(rate: str) -> float:
    return float(rate.removesuffix("mbit").removesuffix("gbit")) * (1e9 if rate.endswith("gbit") else 1e6)


def predicted(row: dict[str, Any], rate: str, speeds: str) -> float:
    """Seconds of computation, and of sending at the full rate; infinite where the target was not reached."""
    case = Case(**row["case"])
    rates = SPEEDS[speeds]
    slowest = 1 / min(rates) if case.name in PEERS else len(rates) / sum(rates)
    per_step = case.step_seconds * slowest + 8 * row["sent_per_step"] / bits(rate)
    return float(row["steps"] * per_step) if row["reached"] else float("inf")


def chosen(name: str, rate: str, speeds: str, results: Results) -> Case | None:
    rows = [row for case in grid(name, results.args) if (row := results.get(case)) and row["reached"]]
    if not rows:
        return None
    best = min(rows, key=lambda row: predicted(row, rate, speeds))
    return Case(**best["case"])._replace(rate=rate, speeds=speeds, most_steps=4 * results.args.most_steps)


def in_earnest(names: list[str], rate: str, speeds: str, results: Results) -> dict[str, list[dict[str, Any]]]:
    """The tuned candidates on one network, on all seeds."""
    args, rows = results.args, {}
    slow = bits(rate) < 50e6
    for name in names:
        case = chosen(name, rate, speeds, results)
        if case is None:
            rows[name] = []
            continue
        short = slow and name in DENSE and not args.patient
        cases = [case._replace(seed=seed) for seed in range(1 if short else args.seeds)]
        results.need([c._replace(most_steps=24) for c in cases] if short else cases)
        if short:
            rows[name] = [extrapolated(c, results) for c in cases]
        else:
            rows[name] = [row for c in cases if (row := results.get(c))]
    return rows


def extrapolated(case: Case, results: Results) -> dict[str, Any]:
    """Seconds per step on this network times the steps that the same seed needs on a faster one."""
    fast = case._replace(rate="100mbit")
    results.need([fast])
    row, few = results.get(fast), results.get(case._replace(most_steps=24))
    assert row is not None
    assert few is not None
    (first, since, *_), (last, until, *_) = few["curve"][0], few["curve"][-1]
    return {
        **row,
        "seconds": row["steps"] * (until - since) / (last - first),
        "extrapolated": True,
        "case": few["case"],
    }


def table(rate: str, speeds: str, rows: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Print one network's seconds; ratios of the goals."""
    times = {
        name: statistics.mean(r["seconds"] for r in runs)
        for name, runs in rows.items()
        if runs and all(r["reached"] for r in runs)
    }
    base = times.get("DDP")
    print(f"\n{rate}, {speeds} speeds")
    print(f"  {'':<34}{'seconds':>9}{'seeds':>22}{'steps':>7}{'kB/step':>9}{'DDP / it':>10}  choices")
    for name, runs in sorted(rows.items(), key=lambda item: times.get(item[0], float("inf"))):
        if name not in times:
            print(f"  {name:<34}{'not reached':>11}  {'; '.join(outcome(r) for r in runs) or 'in no tuning run'}")
            continue
        mark = "~" if runs[0].get("extrapolated") else ""
        each = " ".join(f"{r['seconds']:.1f}" for r in runs)
        steps, sent = (statistics.mean(r[k] for r in runs) for k in ("steps", "sent_per_step"))
        gain = f"{base / times[name]:10.1f}" if base else f"{'':>10}"
        who = f"{'ours: ' if name in OURS else ''}{name}"
        print(
            f"  {who:<34}{mark + format(times[name], '.1f'):>9}{each:>22}{steps:7.0f}{sent / 1e3:9.1f}{gain}"
            f"  {choices(Case(**runs[0]['case']))}"
        )
    mine, theirs = ({n: t for n, t in times.items() if (n in OURS) == own} for own in (True, False))
    ratios = {}
    if mine and theirs:
        best, rival = min(mine, key=mine.__getitem__), min(theirs, key=theirs.__getitem__)
        gain = theirs[rival] / mine[best]
        ratios[f"{rate} {speeds}: best peer / ours"] = gain
        print(f"  ahead of every peer: {rival} / {best} {gain:.2f}   goal above 1: {'met' if gain > 1 else 'MISSED'}")
        if base:
            ratios[f"{rate} {speeds}: DDP / ours"] = base / mine[best]
            verdict = f"   goal at least {GOAL:g}: {'met' if base / mine[best] >= GOAL else 'MISSED'}"
            print(f"  DDP / {best} {base / mine[best]:.1f}{verdict if rate == '100mbit' else ''}")
    return ratios


def installed(name: str) -> bool:
    return all(importlib.util.find_spec(m) is not None for word, m in NEEDS.items() if name.startswith(word))


def candidates(args: argparse.Namespace) -> list[str]:
    names = [n for n in (*PEERS, *OURS) if not args.only or any(w.strip() == n for w in args.only.split(";"))]
    if args.only and not names:
        raise SystemExit(f"--only {args.only}: none of\n  " + "\n  ".join((*PEERS, *OURS)))
    for name in names:
        if not installed(name):
            print(f"{name} is left out: not installed")
    return [name for name in names if installed(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with CIFAR-10")
    parser.add_argument("--out", default="wire_time.json", help="runs, kept as they end")
    parser.add_argument("--rate", default="100mbit,10mbit")
    parser.add_argument("--speeds", default="equal,unequal")
    parser.add_argument("--only", help="names of candidates, separated by semicolons")
    parser.add_argument("--target", type=float, default=0.42)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tuning-seed", type=int, default=100)
    parser.add_argument("--step-seconds", type=float, default=0.03, help="of a batch of 32 at speed 1")
    parser.add_argument("--most-steps", type=int, default=640)
    parser.add_argument("--patience", type=float, default=900, help="seconds until a run is given up")
    parser.add_argument("--patient", action="store_true", help="nothing is extrapolated")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--tests", type=int, default=4_000)
    parser.add_argument("--tune-only", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the first choice of each grid only: do they run?")
    parser.add_argument("--verbose", action="store_true", help="print the errors of runs that failed")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(Case(*json.loads(args.worker)), Path(args.folder))
        return
    if args.data_dir is None or shutil.which("ip") is None:
        raise SystemExit("--data-dir DIR with CIFAR-10, and iproute2, are needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces must go
    torch.set_num_threads(1)
    results, names = Results(args), candidates(args)
    results.need([case for name in names for case in grid(name, args)])
    if args.tune_only:
        return
    ratios: dict[str, float] = {}
    for rate, speeds in itertools.product(args.rate.split(","), args.speeds.split(",")):
        ratios |= table(rate, speeds, in_earnest(names, rate, speeds, results))
    if args.json:
        Path(args.json).write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
