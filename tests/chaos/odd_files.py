"""Recipes, logs, results, partitions, clusters and data files with odd content: one clear line, in bounded time and
memory."""

from __future__ import annotations

import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .checkpoints import FLAGS, clear, command, prepared
from .count import Sums

DEEP = "[" * 20_000 + "]" * 20_000
LONG = "9" * 5_000
NULL = "\0" * 64
HUGE = str(10**30)
ODD_JSON = {
    "deep nesting": DEEP,
    "null bytes": NULL,
    "5,000 digits": LONG,
    "nothing": "",
    "a list": "[1, 2]",
    "a string": '"x"',
    "null": "null",
    "not UTF-8": "\udcff\udcfe",
    "half of it": '{"steps": 4, "mod',
    "infinite": '{"steps": Infinity, "seconds": -Infinity, "blocks": NaN}',
}


def texts() -> Iterator[tuple[str, str, str, list[str]]]:
    """What is odd, the file below the folder, its content, and the command that reads it."""
    steps = ["--steps", "1", "--out", "new"]
    for name, text in ODD_JSON.items():
        yield f"result.json: {name}", "run/result.json", text, ["report", "run"]
        yield f"result.json: {name}", "run/result.json", text, ["resume", "run", "--steps", "4", "--quiet"]
        yield f"events.jsonl: {name}", "run/events.jsonl", f"{text}\n", ["report", "run"]
        yield f"partition: {name}", "p.json", text, ["train", *FLAGS, *steps, *_partition("p.json")]
        yield f"partition: {name}", "p.json", f'{{"blocks": [[{text}], [1]]}}', ["train", *FLAGS, *steps, *_partition("p.json")]
        yield f"cluster: {name}", "c.json", text, ["train", *FLAGS, *steps, "--cluster", "c.json"]
    for event in ODD_EVENTS:
        yield f"events.jsonl: {event[:60]}", "run/events.jsonl", f"{event}\n", ["report", "run"]
    for row in ODD_RESULTS:
        yield f"result.json: {row[:60]}", "run/result.json", row, ["report", "run"]
    for line in ODD_RECIPES:
        yield f"recipe: {line[:60]}", "r.toml", line, ["train", "r.toml", *steps, "--quiet"]
    for line in ODD_CLUSTERS:
        yield f"cluster: {line[:60]}", "c.toml", line, ["train", *FLAGS[:-3], "--quiet", *steps, "--cluster", "c.toml"]
        yield f"cluster: {line[:60]}", "c.toml", line, ["cluster", "show", "c.toml"]
    for flags in ODD_FLAGS:
        yield f"flags: {flags[:60]}", "x", "", ["train", *FLAGS, *steps, *flags.split()]


def _partition(path: str) -> list[str]:
    return ["--partition", "from-file", "--partition.path", path]


_EVENT = '"event": "step", "worker": 0, "step": 1, "epoch": 0, "samples": 8, "rounds": 1, "messages": 1, "bytes": 8'
ODD_EVENTS = [
    f'{{{_EVENT}, "loss": {DEEP}}}',
    f'{{{_EVENT}, "loss": {LONG}}}',
    f'{{{_EVENT}, "loss": "low", "seconds": "soon", "time": []}}',
    f'{{{_EVENT}, "loss": 1e400, "seconds": -1}}',
    '{"event": "step", "worker": "first", "step": 1}',
    '{"event": "step", "worker": 0, "step": "last"}',
    '{"event": "step", "worker": [0], "step": 1}',
    '{"event": ["step"], "worker": 0, "step": 1}',
    f'{{"event": "step", "worker": {LONG}, "step": 1}}',
    '{"event": "evaluate", "worker": 0, "step": 1, "models": [1], "health": 3}',
    '{"event": "evaluate", "worker": 0, "step": 1, "models": {"mean": {"loss": {"a": 1}}}}',
    '{"event": "resume", "worker": {}, "step": null}',
    '{"event": "batch", "worker": 0, "step": 1, "new": "many"}',
    '{"event": "start", "worker": 0, "step": 0, "classes": [["a"]], "examples": -5}',
]
ODD_RESULTS = [
    '{"steps": "many", "samples": [], "models": 5, "workers": {"a": 1}}',
    '{"steps": 4, "samples": 8, "models": {"mean": 1}, "workers": [1, 2]}',
    f'{{"steps": 4, "workers": {DEEP}}}',
    f'{{"steps": {LONG}}}',
    '{"steps": 1e400, "models": {"mean": {"loss": "low"}}, "params_sha256": 7}',
]
_DATA = 'model = "logistic"\nvirtual = true\n[data]\nname = "synthetic"\n'
ODD_RECIPES = [
    f"workers = {DEEP}",
    f"workers = {LONG}",
    f"workers = {HUGE}",
    f"workers = {HUGE}\n{_DATA}",
    "workers = 10_000_000\n" + _DATA,
    'workers = "two"',
    "workers = nan",
    "workers = 2.5",
    "workers = []",
    f"steps = {HUGE}\nworkers = 1\nbudget = '1 s'\n{_DATA}",
    f"batch = {HUGE}\n{_DATA}",
    f"{_DATA}examples = 100_000_000_000_000",
    f"{_DATA}examples = {HUGE}",
    f"{_DATA}features = 100_000_000_000",
    f"{_DATA}classes = 100_000_000_000",
    f"{_DATA}examples = '60'",
    f"{_DATA}noise = inf",
    f"seed = {HUGE}\n{_DATA}",
    "seed = -1\n" + _DATA,
    "lr = 'fast'\n" + _DATA,
    "lr = nan\n" + _DATA,
    "sync = 5\n" + _DATA,
    "[sync]\nname = []\n" + _DATA,
    "[sync]\nname = 'diloco'\nfragments = 1_000_000_000_000\n" + _DATA,
    "[model]\nname = 'mlp'\nhidden = [1_000_000_000_000]\nvirtual = 3\n",
    "[model]\nname = 'mlp'\nhidden = ['a']\n",
    "period = -3\n" + _DATA,
    f"period = {HUGE}\nworkers = 2\n{_DATA}",
    "log_every = 0\n" + _DATA,
    "checkpoint_every = -1\n" + _DATA,
    "keep = 0\n" + _DATA,
    "out = 5\n" + _DATA,
    "a" * 100_000 + " = 1",
    NULL,
    "\udcff",
    "x = 1979-99-99",
    "[a]\n[a]\n",
]
ODD_CLUSTERS = [
    "[[workers]]\ncount = 100_000_000_000_000\n",
    f"[[workers]]\ncount = {HUGE}\n",
    "[[workers]]\ncount = 3_000_000\n",
    "[[workers]]\nspeed = 'fast'\n",
    "[[workers]]\nspeed = nan\n[[workers]]\n",
    "[[workers]]\nspeed = 1e400\n[[workers]]\n",
    "[[workers]]\nspeed = -1\n",
    "workers = 5\n",
    "workers = [[1]]\n",
    "[[workers]]\n[[workers]]\n[links]\nbandwidth = 'all'\n",
    "[[workers]]\n[[workers]]\n[links]\nlatency = -1\n",
    "[[workers]]\n[[workers]]\n[[links.between]]\nworkers = [0, 99]\n",
    "[[workers]]\n[[workers]]\n[[links.between]]\nsites = [{}]\n",
    f"x = {DEEP}",
    f"[[workers]]\nspeed = {LONG}\n",
]
ODD_FLAGS = [
    f"--workers {HUGE}",
    "--workers 1e30",
    f"--data.examples {HUGE}",
    "--data.examples 100000000000000",
    f"--batch {HUGE},1",
    f"--seed {HUGE}",
    f"--log-every {HUGE}",
    f"--checkpoint-every {HUGE}",
    f"--timeout {HUGE}",
    "--timeout nan",
    f"--budget {LONG}s",
    f"--lr {LONG}",
    "--sync diloco --sync.fragments 100000000000000",
    "--sync easgd --sync.pull 1e400",
    "--order.x " + "9" * 100_000,
    "--wire top-k --wire.keep nan",
    "--topology random --topology.degree 100000000000 --sync d-psgd",
]


def absurd_idx(folder: Path) -> None:
    """Sizes in the header for which no memory is enough."""
    for name, dimensions in (("images-idx3", 3), ("labels-idx1", 1)):
        for part in ("train", "t10k"):
            header = bytes([0, 0, 8, dimensions]) + struct.pack(f">{dimensions}I", *[2**32 - 1] * dimensions)
            (folder / f"{part}-{name}-ubyte").write_bytes(header + bytes(100))


def absurd_npy(folder: Path, shape: str = "(100000000000000, 64)") -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)
    (folder / "features.npy").write_bytes(data)
    with zipfile.ZipFile(folder / "features.npz", "w") as archive:
        archive.writestr("x.npy", data)
        archive.writestr("y.npy", data)


def bomb(folder: Path) -> None:
    """A megabyte that unpacks to a gigabyte."""
    import gzip

    with gzip.open(folder / "big.tsv", "wb") as file:
        for _ in range(1 << 10):
            file.write(b"0" * (1 << 20))


BINARIES: list[tuple[str, Callable[[Path], None], list[str]]] = [
    ("an idx header of absurd sizes", absurd_idx, ["--data", "fashion-mnist", "--data.dir", "."]),
    (
        "an npy header of absurd sizes",
        absurd_npy,
        [*FLAGS, "--partition", "submodular", "--partition.features", "features.npy"],
    ),
    (
        "an npz header of absurd sizes",
        absurd_npy,
        [*FLAGS, "--partition", "submodular", "--partition.features", "features.npz"],
    ),
    (
        "an npy header of negative sizes",
        lambda folder: absurd_npy(folder, "(-1, 4)"),
        [*FLAGS, "--partition", "submodular", "--partition.features", "features.npy"],
    ),
    ("a gzip file that unpacks to a gigabyte", bomb, ["--data", "tsv", "--data.path", "big.tsv"]),
]


def all_cases() -> list[tuple[str, Callable[[Path], None], list[str]]]:
    cases = [(what, _writer(path, text), words) for what, path, text, words in texts()]
    return cases + [(what, make, ["train", *words, "--steps", "1", "--out", "new"]) for what, make, words in BINARIES]


def _writer(path: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).write_bytes(text.encode(errors="surrogateescape")) and None


def odd_file(case: tuple[str, Callable[[Path], None], list[str]], folder: Path, sums: Sums) -> None:
    what, write, words = case
    folder.mkdir(parents=True, exist_ok=True)
    here = folder / "here"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    if "run" in words:
        shutil.copytree(prepared(folder, "all-reduce"), here / "run")
    write(here)

    outcome = command(words, folder / "said", here)
    row = sums.row("odd recipes, logs, results, partitions, clusters, data", "one clear line, or read; no hang")
    row.count(outcome.code == 0 or clear(outcome), f"{what} ({' '.join(words[:2])}): {str(outcome)[:300]}")
    row.measured(outcome.seconds)


def some(rng: random.Random, count: int) -> list[tuple[str, Callable[[Path], None], list[str]]]:
    cases = all_cases()
    return rng.sample(cases, min(count, len(cases)))

