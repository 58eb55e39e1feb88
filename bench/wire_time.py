"""Seconds of training to a target accuracy: our wires beside DDP and its hooks, Accelerate, torchft and decent-dp.

    sudo python wire_time.py --data-dir DIR --out wire_time.json
    sudo python wire_time.py --data-dir DIR --out wire_time.json --rate 100mbit --speeds equal --only DDP

Four processes, each in a network namespace whose link is limited in both directions (namespaces.py). An MLP of a
million parameters on CIFAR-10, images averaged down to 16 x 16, momentum SGD, batches of 32 per worker. A batch takes
`--step-seconds` on a worker of speed 1 (sleep); speeds are 1:1:1:1 or 1:1:2:4. With unequal speeds ours take batches
in proportion to them; the peers have no such choice and wait for the slowest worker.

1. Tuning. Every candidate runs on an unlimited network without sleep, on seeds of its own, for all learning rates,
   periods and outer steps of one grid. Steps to the target, bytes on the interface, the rate of the link and the time
   of a step predict the seconds of each; the best one is chosen for every rate and speeds.
2. Steps. The chosen ones run in the same way on the test seeds: how many steps do they need? Accuracy is that of the
   workers' mean model on test images, evaluated by another process, every 8 steps.
3. Seconds. On the limited network every step of a method, or every round, does the same. So its first steps and then
   as many as take about `--window` seconds are timed, and the seconds to the target follow: those of the first steps,
   and the seconds per step times the others.
4. `--whole NAMES` are also run from the start to the target on the limited network, on all seeds, to check that.

`--stages` chooses among tune, steps, time and whole. The first two need no quiet machine. Runs are kept in `--out` as
they end, and not repeated. Peers that are not installed are left out: pip install accelerate torchft decent-dp loguru
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import json
import multiprocessing.context
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import namespaces
import torch
from torch import nn
from wire_time_worker import EVERY, OURS, PEERS, SPEEDS, Case, network, work

WORKERS = 4
FORK = multiprocessing.get_context("fork")
Worker = multiprocessing.context.ForkProcess
STAGES = ("tune", "steps", "time", "whole")
NEEDS = {"Accelerate": "accelerate", "torchft": "torchft", "decent-dp": "decent_dp"}
GOAL = 15.0
LRS = (0.05, 0.02)  # both where every step communicates; local steps need the smaller one
PERIODS = (16, 64)
OUTER = ((0.7, 0.9), (1.0, 0.5))
SPARSE_OUTER = ((0.7, 0.0), (1.0, 0.0))
DELAYS = (1, 2)


def grid(name: str, args: argparse.Namespace) -> list[Case]:
    """What a candidate is tuned over: the same grid for peers and ours."""
    local = any(word in name for word in ("Local", "DiLoCo", "periodic"))
    lrs = LRS[1:] if local else LRS
    outer = [(1.0, 0.0)]
    if "DiLoCo" in name:
        outer = list(SPARSE_OUTER if "SparseLoCo" in name else OUTER)
    delays = DELAYS if "overlapped" in name else (0,)
    cases = [
        Case(name, "", "equal", 0, lr, period, *step, delay, args.step_seconds, args.most_steps)
        for lr, period, step, delay in itertools.product(lrs, PERIODS if local else (1,), outer, delays)
    ]
    return cases[:1] if args.quick else cases


def key(case: Case, args: argparse.Namespace) -> str:
    return json.dumps([*case, args.target, args.examples, args.tests])


class Evaluation:
    """Reads snapshots as they appear, and knows the accuracy of the workers' mean."""

    def __init__(self, folder: Path, test: tuple[torch.Tensor, torch.Tensor]):
        self.folder, self.test = folder, test
        self.model = network(test[0].shape[1])
        self.curve: list[tuple[int, float, float, float]] = []  # step, seconds, accuracy, bytes sent per worker

    def newest(self) -> bool:
        """Evaluate the next snapshot if all workers have written it."""
        step = EVERY * (len(self.curve) + 1)
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
        processes = start(case, folder, data[0])
        os.nice(5)  # the evaluation gives way to the workers
        try:
            row = timed(case, folder, processes, args) if case.timed else evaluated(folder, processes, data[1], args)
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
            for process in processes:
                process.kill()
                process.join()
        errors = (folder / "errors").read_text()
    return {"case": case._asdict(), **row, "errors": "" if row["reached"] else errors[-2000:]}


def evaluated(folder: Path, processes: list[Worker], test: Any, args: argparse.Namespace) -> dict[str, Any]:
    evaluation, started, reached = Evaluation(folder, test), time.monotonic(), False
    while not reached and time.monotonic() - started < args.patience:
        if not evaluation.newest():
            if not all(p.is_alive() for p in processes) and not evaluation.newest():
                break
            time.sleep(0.02)
        reached = bool(evaluation.curve) and evaluation.curve[-1][2] >= args.target
    steps, seconds, accuracy, sent = evaluation.curve[-1] if evaluation.curve else (0, 0.0, 0.0, 0.0)
    return {
        **{"reached": reached, "seconds": seconds, "steps": steps, "accuracy": accuracy},
        "sent_per_step": sent / max(steps, 1),
        "curve": evaluation.curve,
    }


def timed(case: Case, folder: Path, processes: list[Worker], args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the first steps, and per step after these; the slowest worker counts."""
    started = time.monotonic()
    paths = [folder / f"{step}-{rank}.pt" for step in (case.warm, case.most_steps) for rank in range(WORKERS)]
    while time.monotonic() - started < args.patience and any(p.is_alive() for p in processes):
        if all(path.exists() for path in paths):
            break
        time.sleep(0.05)
    if not all(path.exists() for path in paths):
        return {"reached": False, "steps": 0, "seconds": 0.0, "accuracy": 0.0, "sent_per_step": 0.0}
    rows = [torch.load(path) for path in paths]
    first, last = (max(row["seconds"] for row in part) for part in (rows[:WORKERS], rows[WORKERS:]))
    sent = statistics.mean(b["sent"] - a["sent"] for a, b in zip(rows[:WORKERS], rows[WORKERS:], strict=True))
    steps = case.most_steps - case.warm
    return {
        **{"reached": True, "steps": case.most_steps, "seconds": last, "accuracy": 0.0},
        **{"first": first, "per_step": (last - first) / steps, "sent_per_step": sent / steps},
    }


def start(case: Case, folder: Path, data: tuple[torch.Tensor, torch.Tensor]) -> list[Worker]:
    """Forked: torch and the data are loaded already."""
    processes = [FORK.Process(target=enter, args=(case, folder, data, rank), daemon=True) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    return processes


def enter(case: Case, folder: Path, data: tuple[torch.Tensor, torch.Tensor], rank: int) -> None:
    """A worker in its namespace."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with (folder / "errors").open("a") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    with Path(f"/run/netns/{namespaces.PREFIX}{rank}").open() as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespaces.PREFIX}{rank}")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORKERS), LOCAL_RANK="0", OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR=f"{namespaces.NETWORK}.1", MASTER_PORT="29678")
    os.environ.update(GLOO_SOCKET_IFNAME=f"{namespaces.PREFIX}i{rank}")
    work(case, folder, data)


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
        missing = [case for case in dict.fromkeys(cases) if self.get(case) is None]
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
    where = f"{case.rate or 'no limit'}, {case.speeds}, seed {case.seed}"
    return f"{case.name} ({where}, {choices(case)})"


def choices(case: Case) -> str:
    words = [f"lr {case.lr:g}"]
    if case.period > 1:
        words.append(f"H {case.period}")
    if "DiLoCo" in case.name:
        words.append(f"outer {case.outer_lr:g}/{case.outer_momentum:g}")
    if case.delay:
        words.append(f"delay {case.delay}")
    return ", ".join(words)


def outcome(row: dict[str, Any]) -> str:
    if "per_step" in row:
        return f"{row['first']:.2f} s, then {row['per_step']:.4f} s per step"
    state = f"{row['seconds']:.1f} s" if row["reached"] else f"not reached, {100 * row['accuracy']:.1f} %"
    return f"{state}, {row['steps']} steps, {row['sent_per_step'] / 1e3:.1f} kB sent per step"


def bits(rate: str) -> float:
    return float(rate.removesuffix("mbit").removesuffix("gbit")) * (1e9 if rate.endswith("gbit") else 1e6)


def predicted(row: dict[str, Any], rate: str, speeds: str) -> float:
    """Seconds of computation, and of sending at the full rate unless it is hidden; infinite if it did not end."""
    case = Case(**row["case"])
    rates = SPEEDS[speeds]
    slowest = 1 / min(rates) if case.name in PEERS else len(rates) / sum(rates)
    sending = 8 * row["sent_per_step"] / bits(rate)
    hidden = case.step_seconds * slowest * case.delay / case.period
    per_step = case.step_seconds * slowest + max(0.0, sending - hidden)
    return float(row["steps"] * per_step) if row["reached"] else float("inf")


def tuning_seeds(args: argparse.Namespace) -> range:
    return range(args.tuning_seed, args.tuning_seed + args.tuning_seeds)


def chosen(name: str, rate: str, speeds: str, results: Results) -> Case | None:
    """The choice with the least predicted seconds over the tuning seeds; None if none reached the target on all."""
    seconds: dict[Case, float] = {}
    for case in grid(name, results.args):
        rows = [results.get(case._replace(seed=seed)) for seed in tuning_seeds(results.args)]
        seconds[case] = sum(predicted(row, rate, speeds) if row else float("inf") for row in rows)
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < float("inf") else None


def counted(case: Case, speeds: str, args: argparse.Namespace) -> list[Case]:
    """The runs that count steps; for peers the speeds do not matter."""
    speeds = "equal" if case.name in PEERS else speeds
    return [case._replace(speeds=speeds, seed=seed) for seed in range(args.seeds)]


def window(case: Case, rate: str, speeds: str, args: argparse.Namespace, results: Results) -> Case:
    """The run that measures seconds: whole rounds after the first steps."""
    row = results.get(case._replace(seed=args.tuning_seed))
    assert row is not None
    per_step = predicted(row, rate, speeds) / row["steps"]
    rounds = max(2 if case.period > 1 else 4, round(args.window / per_step / case.period))
    return case._replace(rate=rate, speeds=speeds, timed=True, most_steps=case.warm + rounds * case.period)


def whole(case: Case, rate: str, speeds: str, args: argparse.Namespace) -> list[Case]:
    return [case._replace(rate=rate, speeds=speeds, seed=seed) for seed in range(args.seeds)]


class Measured(NamedTuple):
    """A candidate on one network."""

    case: Case
    runs: list[dict[str, Any]]  # that counted steps, one for each seed
    time: dict[str, Any] | None
    whole: list[dict[str, Any]]

    @property
    def seconds(self) -> list[float]:
        """To the target, one for each seed; none if a run did not reach it."""
        if (
            self.time is None
            or "first" not in self.time
            or not self.runs
            or not all(row["reached"] for row in self.runs)
        ):
            return []
        first, per_step, warm = self.time["first"], self.time["per_step"], self.case.warm
        return [first + (row["steps"] - warm) * per_step for row in self.runs]


def measured(name: str, rate: str, speeds: str, results: Results) -> Measured | None:
    case = chosen(name, rate, speeds, results)
    if case is None:
        return None
    args = results.args
    runs = [row for each in counted(case, speeds, args) if (row := results.get(each))]
    found = [row for each in whole(case, rate, speeds, args) if (row := results.get(each))]
    return Measured(case, runs, results.get(window(case, rate, speeds, args, results)), found)


def table(rate: str, speeds: str, rows: dict[str, Measured | None]) -> dict[str, float]:
    """Print one network's seconds; ratios of the goals."""
    times = {name: statistics.mean(row.seconds) for name, row in rows.items() if row and row.seconds}
    base = times.get("DDP")
    print(f"\n{rate}, {speeds} speeds")
    print(
        f"  {'':<34}{'seconds':>9}{'of each seed':>22}{'whole runs':>22}{'steps':>7}{'s/step':>8}{'kB/step':>9}"
        f"{'DDP / it':>10}  choices"
    )
    for name, row in sorted(rows.items(), key=lambda item: times.get(item[0], float("inf"))):
        if name not in times or row is None or row.time is None:
            runs = row.runs if row else []
            print(f"  {name:<34}{'no result':>9}  {'; '.join(map(outcome, runs)) or 'not reached in tuning'}")
            continue
        each, complete = (" ".join(f"{t:.1f}" for t in ts) for ts in (row.seconds, [r["seconds"] for r in row.whole]))
        steps = statistics.mean(r["steps"] for r in row.runs)
        gain = f"{base / times[name]:10.1f}" if base else f"{'':>10}"
        print(
            f"  {('ours: ' if name in OURS else '') + name:<34}{times[name]:9.1f}{each:>22}{complete:>22}{steps:7.0f}"
            f"{row.time['per_step']:8.3f}{row.time['sent_per_step'] / 1e3:9.1f}{gain}  {choices(row.case)}"
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


def rows_of(names: list[str], networks: list[tuple[str, str]], results: Results) -> dict[str, Any]:
    """For the tables of the docs: by network and candidate the seconds of each seed, kB and seconds per step."""
    found: dict[str, Any] = {}
    for rate, speeds in networks:
        rows = {name: measured(name, rate, speeds, results) for name in names}
        found[f"{rate} {speeds}"] = {
            name: {
                "ours": name in OURS,
                "seconds": [round(second, 2) for second in row.seconds],
                "kB": round(row.time["sent_per_step"] / 1e3, 2) if row.time else None,
                "per_step": round(row.time["per_step"], 4) if row.time else None,
                "steps": [run["steps"] for run in row.runs],
                "choices": choices(row.case),
            }
            for name, row in rows.items()
            if row is not None and row.seconds
        }
    return found


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
    parser.add_argument("--stages", default=",".join(STAGES), help="some of them; the table needs the first three")
    parser.add_argument("--whole", default="", help="names of candidates to run as a whole, separated by semicolons")
    parser.add_argument("--window", type=float, default=5.0, help="seconds that are timed of each candidate")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuning-seed", type=int, default=100, help="the first of them")
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--step-seconds", type=float, default=0.03, help="of a batch of 32 at speed 1")
    parser.add_argument("--most-steps", type=int, default=640)
    parser.add_argument("--patience", type=float, default=900, help="seconds until a run is given up")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--tests", type=int, default=4_000)
    parser.add_argument("--quick", action="store_true", help="the first choice of each grid only: do they run?")
    parser.add_argument("--verbose", action="store_true", help="print the errors of runs that failed")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--table", metavar="FILE", help="also write what docs/make_tables.py needs")
    args = parser.parse_args()
    if args.data_dir is None or shutil.which("ip") is None:
        raise SystemExit("--data-dir DIR with CIFAR-10, and iproute2, are needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces must go
    torch.set_num_threads(1)
    results, names, stages = Results(args), candidates(args), args.stages.split(",")
    networks = list(itertools.product(args.rate.split(","), args.speeds.split(",")))
    if "tune" in stages:
        results.need([c._replace(seed=s) for name in names for c in grid(name, args) for s in tuning_seeds(args)])
    choice = {(n, *where): case for n in names for where in networks if (case := chosen(n, *where, results))}
    if "steps" in stages:
        results.need([c for (_, _, speeds), case in choice.items() for c in counted(case, speeds, args)])
    for rate in args.rate.split(","):
        cases: list[Case] = []
        for (name, at, speeds), case in choice.items():
            if at == rate and "time" in stages:
                cases.append(window(case, rate, speeds, args, results))
            if at == rate and "whole" in stages and name in args.whole.split(";"):
                cases += whole(case, rate, speeds, args)
        results.need(cases)
    ratios: dict[str, float] = {}
    for rate, speeds in networks:
        ratios |= table(rate, speeds, {name: measured(name, rate, speeds, results) for name in names})
    if args.json:
        Path(args.json).write_text(json.dumps(ratios, indent=1) + "\n")
    if args.table:
        Path(args.table).write_text(json.dumps(rows_of(names, networks, results), indent=1) + "\n")


if __name__ == "__main__":
    main()
