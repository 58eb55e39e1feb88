"""The submodular partition: time, memory and quality, beside a loop over submodlib and one over apricot.

Every case runs in a process of its own, so that its peak of memory is its own (torch alone takes about 350 MB of it).
Seconds are those of the division itself with the machine code in the cache.
`--million 0`, `--growth 0`, `--peers 0` leave parts out. `--plot FILE.png` draws the growth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from common import report

GOALS = {"seconds 50k": 10.0, "MB 50k": 1000.0, "seconds 1M": 180.0, "MB 1M": 4000.0}


def clusters(n: int, columns: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Every class is a mixture of five clusters of unlike weight."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, 5, columns)).astype(np.float32)
    labels = np.arange(n) % classes
    part = rng.choice(5, p=[0.4, 0.3, 0.15, 0.1, 0.05], size=n)
    return centres[labels, part] + rng.standard_normal((n, columns), dtype=np.float32), labels


def divide(n: int, classes: int, workers: int, audited: bool, options: dict) -> dict:
    """One case, in this process."""
    import resource

    import equipoise as eq
    from equipoise.partition.audit import audit, summary

    x, y = clusters(n, 64, classes)
    method = eq.partition.Submodular(**options)
    started = time.perf_counter()
    method.divide(*clusters(2000, 64, 2), workers)
    cold = time.perf_counter() - started
    cpu, started = time.process_time(), time.perf_counter()
    plan = method.divide(x, y, workers)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"seconds": seconds, "cpu": cpu, "cold": cold, "MB": peak, "spread": spread(x, y, plan.blocks)}
    if audited:
        found["mmd2_ratio"] = summary(audit(x, plan.groups, plan.blocks, None, splits=3))["mmd2_ratio"]
    return found


def spread(x: np.ndarray, y: np.ndarray, blocks: list[np.ndarray]) -> float:
    """(max f - min f) / mean f over blocks for facility location, averaged over up to three classes of up to 2000."""
    from equipoise.partition.engine.kernels import quantize, similarities

    found = []
    for label in range(min(3, int(y.max()) + 1)):
        members = np.flatnonzero(y == label)
        if len(members) > 2000:
            continue
        kernel = similarities(quantize(x[members]))
        values = [kernel[:, np.isin(members, block)].max(1).sum(dtype=np.int64) for block in blocks]
        found.append(np.ptp(values) / np.mean(values))
    return float(np.mean(found)) if found else float("nan")


def submodlib_loop(n: int, classes: int, workers: int) -> dict:
    """Worker after worker selects its share of what is left of each class: what one can do with a selector."""
    from submodlib import FacilityLocationFunction

    def select(x: np.ndarray, count: int) -> list[int]:
        function = FacilityLocationFunction(n=len(x), mode="dense", data=x, metric="euclidean")
        chosen = function.maximize(budget=count, optimizer="LazyGreedy", show_progress=False)
        return [index for index, _ in chosen]

    return peer_loop(n, classes, workers, select)


def apricot_loop(n: int, classes: int, workers: int) -> dict:
    from apricot import FacilityLocationSelection

    def select(x: np.ndarray, count: int) -> list[int]:
        return list(FacilityLocationSelection(count, metric="euclidean", optimizer="lazy").fit(x).ranking)

    return peer_loop(n, classes, workers, select)


def peer_loop(n: int, classes: int, workers: int, select) -> dict:  # type: ignore[no-untyped-def]
    x, y = clusters(n, 64, classes)
    blocks: list[list[int]] = [[] for _ in range(workers)]
    started = time.perf_counter()
    for label in range(classes):
        left = np.flatnonzero(y == label)
        for worker in range(workers - 1):
            chosen = select(x[left].astype(np.float64), round(len(left) / (workers - worker)))
            blocks[worker] += left[chosen].tolist()
            left = np.delete(left, chosen)
        blocks[-1] += left.tolist()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "spread": spread(x, y, [np.array(b) for b in blocks])}


def alone(case: dict, **environment: str) -> dict:
    """Run a case in a fresh process."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment).stdout
    return json.loads(text.splitlines()[-1])


def growth(
    sizes: list[int], workers: int, plot: str | None, known: dict[int, dict]
) -> list[tuple[str, float, float | None]]:
    """Seconds against n: by chunks above 50,000. What was measured before is not measured again."""
    print("\n        n  classes  seconds     cpu      MB")
    seconds = []
    for n in sizes:
        classes = 10 if n <= 50_000 else 100
        case = {"kind": "ours", "n": n, "classes": classes, "workers": workers, "audited": False, "options": {}}
        found = known[n] if n in known else alone(case)
        seconds.append(found["seconds"])
        print(f"{n:9,d}  {classes:7d}  {found['seconds']:7.2f}  {found['cpu']:6.2f}  {found['MB']:6.0f}", flush=True)
    if plot:
        draw(sizes, seconds, plot)
    pairs = list(zip(sizes, seconds, strict=True))
    return [
        (f"growth exponent from {a:,} to {b:,}", float(np.log(t / s) / np.log(b / a)), None)
        for (a, s), (b, t) in itertools.pairwise(pairs)
    ]


def draw(sizes: list[int], seconds: list[float], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    axes.loglog(sizes, seconds, "o-", color="#2f6fb3")
    axes.set(xlabel="examples (64 features, 8 workers)", ylabel="seconds", title="10 classes, from 100k on 100")
    axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    for name, value in (("workers", 8), ("large", 50_000), ("peers", 10_000), ("million", 1_000_000), ("growth", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.case:
        case = json.loads(args.case)
        kind = {"ours": divide, "submodlib": submodlib_loop, "apricot": apricot_loop}[case.pop("kind")]
        print(json.dumps(kind(**case)))
        return

    def ours(n: int, classes: int, audited: bool = False, **options: object) -> dict:
        case = {"kind": "ours", "n": n, "classes": classes, "workers": args.workers, "audited": audited}
        found = alone(case | {"options": options})
        words = f"{found['seconds']:.2f} s, {found['cpu']:.2f} s of processors, {found['MB']:.0f} MB"
        print(f"  {n:,} examples, {classes} classes {options or ''}: {words}", flush=True)
        if not options and (classes == 100) == (n > 50_000):
            known[n] = found
        return found

    known: dict[int, dict] = {}
    rows: list[tuple[str, float, float | None]] = []
    with tempfile.TemporaryDirectory() as empty:
        case = {"kind": "ours", "n": 2000, "classes": 2, "workers": 2, "audited": False, "options": {}}
        rows.append(("first call that has to compile, seconds", alone(case, NUMBA_CACHE_DIR=empty)["cold"], None))
    if args.large:
        found = ours(args.large, 10)
        rows.append((f"{args.large:,} x 64, 10 classes: seconds / 10", found["seconds"] / GOALS["seconds 50k"], 1.0))
        rows.append((f"{args.large:,} x 64, 10 classes: peak MB / 1000", found["MB"] / GOALS["MB 50k"], 1.0))
        herding = ours(args.large, 10, objective="herding")
        rows.append(("the same by herding: seconds / 10", herding["seconds"] / GOALS["seconds 50k"], None))
    if args.peers:
        found = ours(args.peers, 10)
        theirs = alone({"kind": "submodlib", "n": args.peers, "classes": 10, "workers": args.workers})
        print(
            f"  submodlib loop: {theirs['seconds']:.2f} s, spread {theirs['spread']:.4f} (ours {found['spread']:.4f})"
        )
        rows.append((f"{args.peers:,}: ours / submodlib loop, seconds", found["seconds"] / theirs["seconds"], 1 / 8))
        rows.append((f"{args.peers:,}: ours / submodlib loop, spread of f", found["spread"] / theirs["spread"], 1.0))
        small, slow = ours(1000, 1), alone({"kind": "apricot", "n": 1000, "classes": 1, "workers": args.workers})
        print(f"  apricot loop: {slow['seconds']:.2f} s, spread {slow['spread']:.4f} (ours {small['spread']:.4f})")
        rows.append(("1,000, one class: ours / apricot loop, seconds", small["seconds"] / slow["seconds"], None))
        rows.append(("1,000, one class: ours / apricot loop, spread of f", small["spread"] / slow["spread"], None))
    if args.million:
        found = ours(args.million, 100, True)
        rows.append((f"{args.million:,} x 64, 100 classes: seconds / 180", found["seconds"] / GOALS["seconds 1M"], 1.0))
        rows.append((f"{args.million:,} x 64, 100 classes: peak MB / 4000", found["MB"] / GOALS["MB 1M"], 1.0))
        rows.append((f"{args.million:,}: squared MMD / stratified random", found["mmd2_ratio"], None))
    if args.growth:
        largest = max(args.large, args.million)
        sizes = [n for n in (2000, 5000, 10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000) if n <= largest]
        rows += growth(sizes, args.workers, args.plot, known)
    report("Submodular partition", rows, args.json)


if __name__ == "__main__":
    main()
