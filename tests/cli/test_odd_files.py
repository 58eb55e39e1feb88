"""Files that were damaged, changed or made up: one line that says what is wrong, at once, and never a traceback."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import equipoise as eq
from equipoise.core import memory
from equipoise.core.errors import DataError, UserError, verdict
from equipoise.data.files import read_bytes
from equipoise.data.npz import npz_arrays
from equipoise.data.synthetic import Synthetic
from equipoise.launch.start import spawn

from ..loop.problem import DATA
from .conftest import SMALL, Command

DEEP = "[" * 50_000 + "]" * 50_000
LONG = "9" * 5_000

RECIPES = {
    "deep": f"slow = {DEEP}",
    "digits": f"steps = {LONG}",
    "null byte": 'out = "a\\u0000b"',
    "workers": f"workers = {10**30}",
    "seed": f"seed = {10**30}",
    "batch": f"batch = [{10**30}, 1]",
    "rate": f"lr = 1{'0' * 400}",
    "examples": f'[data]\nname = "synthetic"\nexamples = {10**14}',
}
CLUSTERS = {
    "deep": f"workers = {DEEP}",
    "digits": f"[[workers]]\nspeed = {LONG}",
    "count": f"[[workers]]\ncount = {10**30}",
    "groups": "[[workers]]\ncount = 2\n[[links.between]]\ngroups = 5",
}
PARTITIONS = {
    "deep": f'{{"blocks": {DEEP}}}',
    "digits": f'{{"blocks": [[{LONG}]]}}',
    "null byte": "\0",
    "strings": '{"blocks": [["0"], ["1"]]}',
    "far": f'{{"blocks": [[0], [{10**14}]]}}',
    "speeds": '{"blocks": [[0], [1]], "speeds": [null, "x"]}',
}


@pytest.mark.parametrize("kind", RECIPES)
def test_recipes(kind: str, command: Command) -> None:
    Path("odd.toml").write_text(RECIPES[kind])
    refused(command("train", "odd.toml", "--dry-run"))


@pytest.mark.parametrize("kind", CLUSTERS)
def test_clusters(kind: str, command: Command) -> None:
    Path("odd.toml").write_text(CLUSTERS[kind])
    refused(command("train", "--cluster", "odd.toml", "--dry-run"))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partitions(kind: str, command: Command) -> None:
    Path("odd.json").write_text(PARTITIONS[kind])
    refused(command("train", *SMALL, "--partition", "from-file", "--partition.path", "odd.json", "--out", "run"))


def refused(said: Any, code: int = 2) -> None:
    assert said.code == code, said.err
    assert len(said.err.splitlines()) == 1
    assert len(said.err) < 1_000


def test_flags_of_thousands_of_digits(command: Command) -> None:
    refused(command("train", "--steps", LONG, "--dry-run"))


def test_events_results_and_manifests(command: Command) -> None:
    """What cannot be used is left out of the page; a run goes on from its checkpoint, if that is one."""
    assert command("train", *SMALL, "--steps", 4, "--out", "run").code == 0
    events = Path("run/events.jsonl")
    whole = events.read_text()
    last = json.loads(whole.splitlines()[-1])
    odd = [
        last | change for change in ({"worker": None}, {"worker": []}, {"step": "x"}, {"step": 10**30}, {"event": 1})
    ]
    events.write_text("\n".join([whole.rstrip(), DEEP, "\0", f'{{"step": {LONG}}}', *map(json.dumps, odd), ""]))
    said = command("report", "run")
    assert said.code == 0, said.err
    assert "8 lines are damaged and left out" in said.err
    result = json.loads(Path("run/result.json").read_text())
    for other in (DEEP, "null", json.dumps(result | {"steps": "x"}), json.dumps(result | {"workers": 5})):
        Path("run/result.json").write_text(other)
        said = command("report", "run")
        assert said.code == 0, said.err
        assert "result.json cannot be read" in said.err
        assert command("resume", "run", "--quiet").code == 0
    manifest = Path("run/checkpoints/step-4/manifest.json")
    table = json.loads(manifest.read_text())
    row = table["files"][0]
    for change in (
        {"workers": "x"},
        {"workers": 10**30},
        {"fingerprint": [1]},
        {"files": [row]},
        {"files": [row | {"name": 5}, table["files"][1]]},
        {"files": [row | {"name": "../../secret"}, table["files"][1]]},
        {"format": DEEP},
    ):
        manifest.write_text(json.dumps(table | change))
        shutil.rmtree("run/report.html", ignore_errors=True)
        Path("run/result.json").unlink(missing_ok=True)
        refused(command("resume", "run", "--quiet"), 4)
    manifest.write_text(DEEP)
    refused(command("resume", "run", "--quiet"), 4)


def test_a_file_that_unpacks_to_more_than_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(gzip.compress(b"a\tb\n") + gzip.compress(b"0" * 10_000_000))
    assert len(read_bytes(path, "path")) == 10_000_004, "members follow one another"
    monkeypatch.setattr(memory, "memory", lambda: 1e7)
    with pytest.raises(UserError, match=r"x.tsv, unpacked, would take 0.02 GB of memory"):
        read_bytes(path, "path")
    monkeypatch.setattr(zlib, "decompressobj", out_of_memory)
    with pytest.raises(DataError, match=r"x.tsv: too large for the memory of this machine"):
        read_bytes(path, "path")
    code, line, trace = verdict(MemoryError("Unable to allocate 14.6 TiB"))
    assert (code, trace) == (2, "")
    assert line == "out of memory (Unable to allocate 14.6 TiB): take less data or a smaller model"


def out_of_memory(**how: Any) -> None:
    raise MemoryError


def test_sizes_are_checked_before_memory_is_taken() -> None:
    with pytest.raises(UserError, match="would take .* GB of memory and this machine has"):
        Synthetic(examples=10**14).load()
    with pytest.raises(UserError, match="in 100,000,000,000 classes would take"):
        Synthetic(classes=10**11).load()
    with pytest.raises(UserError, match="fragments=100000000000000 and the model has 27 parameters"):
        eq.train(lambda: nn.Linear(8, 3), None, DATA, steps=1, workers=2, sync=eq.sync.DiLoCo(fragments=10**14))
    with pytest.raises(UserError, match=r"workers = 1000000+: from 1 to 100,000 are possible"):
        spawn(lambda comm: None, 10**30, virtual=True)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)})
        archive.writestr("jpeg.npy", header.getvalue())
    with pytest.raises(
        DataError, match=r"the header of 'jpeg' says \(100000000000000,\) and the file does not hold that"
    ):
        npz_arrays(file.getvalue(), ("jpeg",))
