"""Prove that a refactoring changed no number: record the result of every method, then compare.

    python bench/same_bits.py --record before.json      # on the commit before the change
    python bench/same_bits.py --check before.json       # after it, on the same machine

Every registered method runs in at least one recipe. Each recipe runs on virtual workers, on processes, and stopped
and resumed; every sync also runs in a user's own loop under `eq.attach`. `params_sha256`, the hash of the mean model,
must be equal. `--only WORD` restricts it to recipes whose name contains the word.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import pickle
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.cli.main import main as command

SHORT, LONG = 7, 17
COMMON = ["--batch", "8", "--lr", "0.1", "--seed", "3", "--quiet", "--log-every", "5", "--deterministic"]
SYNC_OPTIONS = {
    "diloco": ["--period", "4", "--sync.fragments", "2", "--sync.delay", "1"],
    "lsgd": ["--period", "3", "--sync.prox", "0.1", "--sync.groups", "2"],
    "mgrawa": ["--period", "3", "--sync.source", "fresh", "--sync.debias", "true"],
    "detag": ["--sync.frozen", "true", "--sync.overlap", "true"],
    "slowmo": ["--period", "4", "--sync.state", "average", "--momentum", "0.9"],
}
EVERY_STEP = {"none", "all-reduce", "d-psgd", "d2", "dsgt", "detag", "edm"}
FEW = ["--data", "synthetic", "--data.examples", "203"]  # several epochs in one run
SKEWED = ["--partition", "dirichlet", "--partition.alpha", "0.5"]


def write_files(folder: Path) -> None:
    """Small data sets in every format, a partition file, a graph, a cluster."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 96), ("t10k", 24)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
        )
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        rows = {
            b"data": rng.integers(0, 256, (24, 3072), dtype=np.uint8),
            b"labels": rng.integers(0, 10, 24).tolist(),
        }
        (batches / name).write_bytes(pickle.dumps(rows, protocol=4))
    sentence = "the cat sat on a mat and then it ran off to see what was up there"
    words = sentence.split()
    for name in ("train.txt", "test.txt"):
        (folder / name).write_text("\n".join(" ".join(rng.choice(words, 12)) for _ in range(120)) + "\n")
    for name in ("train.tsv", "dev.tsv"):
        rows = [f"{' '.join(rng.choice(words, 6))}\t{rng.integers(2)}" for _ in range(90)]
        (folder / name).write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    examples = 1438  # of the digits' training part
    (folder / "blocks.json").write_text(json.dumps({"blocks": [list(range(r, examples, 4)) for r in range(4)]}))
    (folder / "edges.txt").write_text("0 1\n1 2\n2 3\n")
    (folder / "cluster.toml").write_text(
        '[[workers]]\ncount = 3\n[[workers]]\nspeed = 3.0\n[links]\nbandwidth = "20 Mbit"\nlatency = "5 ms"\n'
    )


def recipes(files: Path) -> dict[str, list[str]]:
    """Name -> flags."""
    flags_of: dict[str, list[str]] = {}
    for entry in eq_entries():
        axis, name = entry
        flags = [f"--{axis}", name]
        if axis == "sync":
            flags += SKEWED
            flags += SYNC_OPTIONS.get(name, [] if name in EVERY_STEP else ["--period", "2"])
        elif axis == "topology":
            flags += ["--sync", "sgp", "--period", "2"] if name in ("one-peer", "exponential") else ["--sync", "d-psgd"]
            flags += ["--topology.path", str(files / "edges.txt")] if name == "edges" else []
        elif axis == "period":
            flags += ["--schedule", "cosine", "--sync", "periodic-average"]
        elif axis == "order":
            flags += FEW
        elif axis == "partition":
            flags += ["--partition.path", str(files / "blocks.json")] if name == "from-file" else []
            flags += ["--partition.speeds", "1,1,2,4"] if name in ("submodular", "stratified") else []
            flags += ["--sync", "d-psgd"]
        elif axis == "batch":
            flags += ["--sync", "periodic-average", "--period", "3", *SKEWED] if name != "cabs" else []
        elif axis == "data":
            flags += {
                "fashion-mnist": ["--data.dir", str(files)],
                "cifar10": ["--data.dir", str(files / "cifar-10-batches-py"), "--model", "lenet"],
                "text": ["--data.path", str(files / "train.txt"), "--data.test_path", str(files / "test.txt")],
                "tsv": ["--data.path", str(files / "train.tsv"), "--data.test_path", str(files / "dev.tsv")],
            }.get(name, [])
        elif axis == "model":
            small = ["--data", "cifar10", "--data.dir", str(files / "cifar-10-batches-py"), "--buffers", "average"]
            text = [
                "--data",
                "text",
                "--data.path",
                str(files / "train.txt"),
                "--data.test_path",
                str(files / "test.txt"),
            ]
            flags += text if name in ("lstm", "transformer") else small if name in ("lenet", "vgg", "resnet") else []
            flags += ["--period", "2"]
        flags_of[f"{axis}-{name}"] = flags
    cluster = ["--cluster", str(files / "cluster.toml")]
    flags_of |= {
        "mixed-described-cluster": [*cluster, "--sync", "lgrawa", "--period", "4", *SKEWED],
        "mixed-total-steps-cluster": [*cluster, "--sync", "easgd", "--period", "total-steps", "--period.steps", "3"],
        "mixed-five": [
            *("--partition", "submodular", "--partition.speeds", "1,1,2,4", "--order", "cd-grab"),
            *("--batch", "norm-test", "--sync", "periodic-average", "--period", "3", *FEW),
        ],
        "mixed-adam-clip": ["--optimizer", "adamw", "--clip", "0.5", "--lr", "0.01", "--sync", "dsgt"],
        "mixed-sam-micro": ["--sam", "0.05", "--micro", "3", "--momentum", "0.9", "--sync", "lgrawa", "--period", "3"],
        "mixed-adascale": ["--batch", "norm-test", "--scaling", "adascale", "--schedule", "linear", "--warmup", "0.1"],
        "mixed-pseudo": ["--batch", "norm-test", "--batch.estimator", "pseudo", "--period", "4"],
        "mixed-examples": ["--batch", "augmented", "--batch.estimator", "examples", "--period", "2"],
        "mixed-grab-lenet": [
            "--data",
            "fashion-mnist",
            "--data.dir",
            str(files),
            "--order",
            "cd-grab",
            "--period",
            "2",
        ],
        "mixed-projection": ["--order", "cd-grab", "--order.signal", "projection", *FEW],
    }
    return flags_of


def eq_entries() -> list[tuple[str, str]]:
    """Axis and name of every method, from what the command prints: no import that a refactoring may move."""
    text = run_command(["list"])
    axis, methods = "", []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            axis = line.split()[0].rstrip(":")
        elif line.strip():
            methods.append((axis, line.split()[0]))
    return methods


def run_command(words: list[str]) -> str:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = command(words)
    if code != 0:
        raise RuntimeError(f"equipoise {' '.join(words)}: exit code {code}: {error.getvalue().strip()[-300:]}")
    return out.getvalue()


def sha(run: Path) -> str:
    return json.loads((run / "result.json").read_text())["params_sha256"]


def shas_of(name: str, flags: list[str], folder: Path) -> dict[str, str]:
    """The same recipe in three ways. A described cluster is virtual; on processes TotalSteps depends on real time."""
    start = ["train", *COMMON, *flags]
    hashes: dict[str, str] = {}
    described, timed = "--cluster" in flags, "total-steps" in flags
    virtual = [] if described else ["--virtual"]
    run_command([*start, *virtual, "--steps", str(LONG), "--out", str(folder / "virtual")])
    hashes["virtual"] = sha(folder / "virtual")
    if not described and not timed:
        run_command([*start, "--steps", str(LONG), "--out", str(folder / "processes")])
        hashes["processes"] = sha(folder / "processes")
    run_command([*start, *virtual, "--steps", str(SHORT), "--out", str(folder / "resumed")])
    run_command(["resume", str(folder / "resumed"), "--steps", str(LONG), "--quiet"])
    hashes["resumed"] = sha(folder / "resumed")
    return hashes


def attached(name: str, period: int, momentum: float = 0.0) -> str:
    """The mean model of a user's own loop: a sampler, a net with dropout, four virtual workers."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(203, 8, generator=generator)
    targets = (inputs @ torch.randn(8, 4, generator=generator)).argmax(1)
    data = TensorDataset(inputs, targets)

    def loop(comm: Any) -> torch.Tensor:
        torch.manual_seed(11)
        model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=momentum)
        sampler = eq.Sampler(data, partition=eq.partition.IID(), batch=8, seed=3)
        sync = getattr(eq.sync, name)()
        with eq.attach(model, optimizer, sync=sync, period=period, sampler=sampler) as together:
            for _ in range(2):
                for x, y in DataLoader(data, batch_sampler=sampler):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    together.loss = loss.item()
                    optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    rows = eq.spawn(loop, 4, virtual=True)
    return hashlib.sha256(torch.stack(rows).numpy().tobytes()).hexdigest()


def measure(only: str) -> dict[str, str]:
    hashes: dict[str, str] = {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="same-bits-") as place:
        files = Path(place)
        write_files(files)
        for name, flags in recipes(files).items():
            if only not in name:
                continue
            try:
                rows = shas_of(name, flags, files / name)
            except RuntimeError as error:
                rows = {"virtual": f"failed: {error}".replace(place, "")}
                print(name, rows["virtual"], file=sys.stderr, flush=True)
            hashes |= {f"{name}/{way}": value for way, value in rows.items()}
    every_step = {"NoSync", "AllReduce", "DPSGD", "D2", "DSGT", "DeTAG", "EDM"}
    for name, cls in ((name, getattr(eq.sync, name)) for name in dir(eq.sync)):
        known = isinstance(cls, type) and issubclass(cls, eq.sync.Sync) and cls is not eq.sync.Sync
        if known and only in f"attach-{name}":
            hashes[f"attach-{name}"] = attached(name, 1 if name in every_step else 2)
    if only in "attach-momentum":
        hashes["attach-momentum"] = attached("PeriodicAverage", 4, 0.9)
    print(f"{len(hashes)} runs in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return hashes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FILE", help="write what every recipe computes")
    parser.add_argument("--check", metavar="FILE", help="compare with a file that --record wrote")
    parser.add_argument("--only", default="", metavar="WORD", help="recipes whose name contains this")
    arguments = parser.parse_args()
    hashes = measure(arguments.only)
    failed = [name for name, value in hashes.items() if value.startswith("failed")]
    if arguments.record:
        Path(arguments.record).write_text(json.dumps(hashes, indent=1) + "\n")
    if arguments.check:
        before = {k: v for k, v in json.loads(Path(arguments.check).read_text()).items() if arguments.only in k}
        differing = [name for name in before if hashes.get(name) != before[name]]
        for name in differing:
            print(f"{name}: {before[name][:12]} -> {hashes.get(name, 'missing')[:60]}")
        print(f"{len(before) - len(differing)} of {len(before)} the same")
        return 1 if differing or failed else 0
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
