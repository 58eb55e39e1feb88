"""Checkpoints on disk: what is kept, what survives, what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.checkpoint import store, writer
from equipoise.checkpoint.match import refuse_mismatch
from equipoise.core.errors import CheckpointError, UserError
from equipoise.observe import observer

from ..comm.workers import both
from ..loop.problem import DATA, INPUTS, TARGETS, adam, momentum, plain, sgd, train, with_norm

HOW: dict[str, Any] = {"workers": 2, "batch": 6}


def names(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").iterdir())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at steps 2 and 4."""
    train(plain(), momentum, steps=4, out=tmp_path / "run", checkpoint_every=2, **HOW)
    return tmp_path / "run"


def resume(run: Path, model: Any = plain, optimizer: Any = momentum, **more: Any) -> eq.Run:
    how = {"steps": 6, "out": run, "resume": True, "checkpoint_every": 100, **HOW, **more}
    return train(model(), optimizer, **how)


def expected(steps: int = 6) -> str:
    return train(plain(), momentum, steps=steps, **HOW).result["params_sha256"]


# -- what is kept -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("keep", "kept"), [(1, ["step-9"]), (2, ["step-8", "step-9"]), (3, ["step-6", "step-8", "step-9"])]
)
def test_the_last_k_are_kept(keep: int, kept: list[str], tmp_path: Path) -> None:
    train(plain(), sgd, steps=9, out=tmp_path / "run", checkpoint_every=2, keep=keep, **HOW)
    assert names(tmp_path / "run") == kept


def test_without_a_number_each_epoch_is_kept(tmp_path: Path) -> None:
    """26 examples each in batches of 6 are five steps."""
    train(plain(), sgd, epochs=2, out=tmp_path / "run", **HOW)
    assert names(tmp_path / "run") == ["step-10", "step-5"]


def test_what_a_checkpoint_is_made_of(run: Path) -> None:
    folder = run / "checkpoints" / "step-4"
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "worker-0.pt", "worker-1.pt"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["workers"]) == (4, 2)
    for row in manifest["files"]:
        data = (folder / row["name"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
        assert len(data) == row["bytes"]
    state = torch.load(folder / "worker-1.pt", weights_only=True)
    assert {
        "model",
        "optimizer",
        "scheduler",
        "rng",
        "clock",
        "ledger",
        "position",
        "order",
        "batch",
        "period",
        "sync",
    } <= set(state)


def test_workers_differ_between_rounds_and_are_kept_apart(tmp_path: Path) -> None:
    train(plain(), sgd, steps=2, out=tmp_path / "run", period=5, **HOW)
    one, two = (
        torch.load(tmp_path / "run" / "checkpoints" / "step-2" / f"worker-{r}.pt", weights_only=True) for r in range(2)
    )
    assert not torch.equal(one["model"]["0.weight"], two["model"]["0.weight"])


def test_from_an_older_one_the_later_ones_give_way(run: Path) -> None:
    """A new checkpoint must not be thrown away in favour of one from a future that was given up."""
    resumed = resume(run, resume=2, steps=3, keep=1)
    assert resumed.result["steps"] == 3
    assert names(run) == ["step-3"]
    assert resume(run).result["params_sha256"] == expected()


def test_a_step_is_chosen_by_its_number(run: Path) -> None:
    assert resume(run, resume=2).result["params_sha256"] == expected()
    with pytest.raises(CheckpointError, match="no checkpoint of step 3; there are: step-"):
        resume(run, resume=3)


# -- what survives ------------------------------------------------------------------------------------------------
class Killed(BaseException):
    pass


def test_killed_at_any_moment_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write, sync, rename and removal is once the last thing that happens; what is on disk resumes to the same
    bits.
    """
    left = [10**9]

    def counted(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:  # all threads of the process end
                raise Killed
            return original(*args, **kwargs)

        return call

    monkeypatch.setattr(store, "_PATIENCE", 0.1)
    monkeypatch.setattr(writer, "_write", counted(writer._write))
    monkeypatch.setattr(writer, "_sync_folder", counted(writer._sync_folder))
    monkeypatch.setattr(torch, "save", counted(torch.save))
    monkeypatch.setattr(os, "rename", counted(os.rename))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    whole = expected()
    train(plain(), momentum, steps=3, out=tmp_path / "first", keep=1, **HOW)
    moments = 0
    for moment in range(1, 40):
        run = tmp_path / f"run-{moment}"
        shutil.copytree(tmp_path / "first", run)
        left[0] = moment
        try:
            resume(run, steps=5, keep=1, checkpoint_every=5)
        except Killed:
            moments += 1
        finished = left[0] > 0
        left[0] = 10**9
        assert resume(run, keep=1).result["params_sha256"] == whole
        assert names(run) == ["step-6"], "nothing half-written is left"
        if finished:
            break
    assert finished
    assert moments >= 12, "two files, entries of them and their renames, a manifest, two syncs, a rename, a removal"


def test_killed_inside_the_removal_of_an_old_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is half-removed is no checkpoint any more: nobody is sent back to it."""

    def half(path: Path, **how: Any) -> None:
        (path / "manifest.json").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            resume(run, keep=1)
    assert [path.name for path in store.available(run)] == ["step-4", "step-6"]
    assert store.choose(run, 4)
    assert resume(run, steps=7, keep=1).result["params_sha256"] == expected(7)
    assert names(run) == ["step-7"]


@both
@pytest.mark.parametrize("what", ["events", "result", "model"])
def test_a_full_disk_at_the_other_files_of_a_run(
    what: str, virtual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the file and what to do; what was saved goes on once there is space again."""
    save, replace = torch.save, Path.replace
    full = OSError(errno.ENOSPC, "No space left on device")

    def append(handle: int, data: bytes) -> None:
        if b'"step": 5' in data:
            raise full
        os.write(handle, data)

    def save_none(value: Any, path: Any) -> None:
        if "model.pt" in str(path):
            raise RuntimeError("basic_ios::clear: iostream error\nand a trace")
        save(value, path)

    def replace_none(path: Path, to: Path) -> Path:
        if to.name == "result.json":
            raise full
        return replace(path, to)

    with monkeypatch.context() as patch:
        if what == "events":
            patch.setattr(observer, "append", append)
        elif what == "result":
            patch.setattr(Path, "replace", replace_none)
        else:
            patch.setattr(torch, "save", save_none)
            patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))  # type: ignore[attr-defined]
        file = {"events": "events.jsonl", "result": "result.json", "model": "model.pt"}[what]
        how = {"steps": 6, "out": tmp_path / "run", "checkpoint_every": 2, "log_every": 1, "virtual": virtual, **HOW}
        words = rf"^cannot write .*{file}: No space left on device; free space or choose another --out$"
        with pytest.raises(UserError, match=words):
            train(plain(), momentum, **how)
    assert resume(tmp_path / "run").result["params_sha256"] == expected()


def test_a_half_written_folder_does_not_disturb(run: Path) -> None:
    for name in (".step-5.partial", ".step-99.partial"):
        part = run / "checkpoints" / name
        part.mkdir()
        (part / "worker-0.pt").write_bytes(b"half")
    assert resume(run).result["params_sha256"] == expected()
    assert names(run) == ["step-4", "step-6"]


@both
@pytest.mark.parametrize("who", [0, 1])
def test_a_full_disk_is_told_by_all_and_the_last_checkpoint_stays(
    who: int, virtual: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = writer._write_worker

    def full(path: Path, rank: int, state: Any) -> None:
        if rank == who:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, rank, state)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_write_worker", full)
        with pytest.raises(
            CheckpointError, match=r"cannot write .*step-6.*No space left on device; free space or choose another"
        ):
            resume(run, virtual=virtual, timeout=10.0)
    assert resume(run).result["params_sha256"] == expected()


@both
def test_a_manifest_that_cannot_be_written(virtual: bool, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = writer._write

    def full(path: Path, data: Any) -> None:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_write", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            resume(run, virtual=virtual, timeout=10.0)
    assert [n for n in names(run) if n.startswith("step-")] == ["step-2", "step-4"]


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write to .*file.*choose another folder"):
        train(steps=1, out=tmp_path / "file" / "run")
    with pytest.raises(UserError, match="cannot write to"):
        train(steps=1, out=tmp_path / "file")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    for virtual in (True, False):
        with pytest.raises(CheckpointError, match="cannot write .*checkpoints"):
            train(steps=1, out=tmp_path / "run", virtual=virtual, **HOW)
        (tmp_path / "run" / "events.jsonl").unlink()


def test_a_run_is_not_overwritten(run: Path) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="holds a run already: resume it, or choose another folder"):
        train(plain(), momentum, steps=4, out=run, **HOW)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


# -- what is refused ----------------------------------------------------------------------------------------------
def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, **more: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def without(path: Path, key: str) -> None:
    table = json.loads(path.read_text())
    del table[key]
    path.write_text(json.dumps(table))


DAMAGE: dict[str, tuple[Any, str]] = {
    "a bit": (lambda c: flip(c / "worker-1.pt"), "the checksum of worker-1.pt does not match"),
    "cut off": (lambda c: (c / "worker-0.pt").write_bytes(b""), "the checksum of worker-0.pt does not match"),
    "a missing file": (lambda c: (c / "worker-1.pt").unlink(), "worker-1.pt is missing"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "manifest.json"),
    "half a manifest": (lambda c: (c / "manifest.json").write_text('{"format": 1, "st'), "manifest.json"),
    "an empty manifest": (lambda c: (c / "manifest.json").write_text(""), "manifest.json"),
    "a list": (lambda c: (c / "manifest.json").write_text("[1]"), "manifest.json"),
    "not text": (lambda c: (c / "manifest.json").write_bytes(b"\xff\xfe\x00"), "manifest.json"),
    "no files": (lambda c: without(c / "manifest.json", "files"), "manifest.json"),
    "no fingerprint": (lambda c: without(c / "manifest.json", "fingerprint"), "manifest.json"),
    "strange files": (lambda c: rewrite(c / "manifest.json", files=[1]), "manifest.json"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_refused_with_the_way_out(kind: str, run: Path) -> None:
    damage, words = DAMAGE[kind]
    damage(run / "checkpoints" / "step-4")
    with pytest.raises(
        CheckpointError, match=rf"step-4 is damaged: .*{words}.*resume from the one before with --from 2"
    ) as caught:
        resume(run)
    assert caught.value.code == 4
    assert resume(run, resume=2).result["params_sha256"] == expected()
    assert names(run) == ["step-2", "step-6"], "the damaged one is gone once a new one is there"


def test_another_format_is_refused(run: Path) -> None:
    rewrite(run / "checkpoints" / "step-4" / "manifest.json", format=99)
    with pytest.raises(CheckpointError, match="has format 99, this version reads 2"):
        resume(run)


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint to resume from: start it again"):
        resume(tmp_path / "none")


@both
def test_code_in_a_file_is_not_run(virtual: bool, run: Path, tmp_path: Path) -> None:
    """Even if its checksum fits: a checkpoint may come from somebody else."""
    witness = tmp_path / "witness"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (witness,))

    path = run / "checkpoints" / "step-4" / "worker-1.pt"
    for data in (pickle.dumps(Evil()), pickle.dumps({"model": Evil()})):
        path.write_bytes(data)
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["files"][1]["sha256"] = hashlib.sha256(data).hexdigest()
        rewrite(path.parent / "manifest.json", files=manifest["files"])
        with pytest.raises(CheckpointError, match=r"worker-1.pt cannot be read"):
            resume(run, virtual=virtual, timeout=10.0)
        assert not witness.exists()
    torch.save({"model": Evil()}, path)
    rewrite(
        path.parent / "manifest.json",
        files=[manifest["files"][0], {**manifest["files"][1], "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}],
    )
    with pytest.raises(CheckpointError, match=r"worker-1.pt cannot be read"):
        resume(run, virtual=virtual, timeout=10.0)
    assert not witness.exists()


# -- another recipe -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 5}, "batch.size: 6 in the checkpoint, 5 now"),
        ({"seed": 3}, "seed: 0 in the checkpoint, 3 now"),
        ({"sync": eq.sync.NoSync()}, "sync.name: all-reduce in the checkpoint, none now"),
        ({"order": eq.order.Sequential()}, "order.name: reshuffle in the checkpoint, sequential now"),
        ({"partition": eq.partition.Contiguous()}, "partition.name: iid in the checkpoint, contiguous now"),
        ({"clip": 1.0}, "clip: None in the checkpoint, 1.0 now"),
        ({"buffers": "average"}, "buffers: local in the checkpoint, average now"),
        ({"drop_last": True}, "drop_last: False in the checkpoint, True now"),
        ({"optimizer": adam}, "optimizer: SGD in the checkpoint, Adam now"),
        (
            {"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 3)},
            "scheduler: NoneType in the checkpoint, StepLR now",
        ),
        ({"model": lambda: nn.Linear(6, 3)}, "model: Sequential in the checkpoint, Linear now"),
        ({"model": with_norm}, "another model.*"),
    ],
)
def test_other_choices_are_refused_with_a_diff(change: dict[str, Any], words: str, run: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        resume(run, **change)
    assert resume(run).result["params_sha256"] == expected(), "and the run is unharmed"


def test_several_differences_are_listed(run: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        resume(run, batch=5, seed=3)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the checkpoint belongs to another recipe:"
    assert [line.split(":")[0] for line in lines[1:]] == ["  batch.size", "  seed"]


def test_other_data_is_refused(run: Path) -> None:
    for data in ((INPUTS[:50], TARGETS[:50]), (torch.cat([INPUTS, INPUTS]), torch.cat([TARGETS, TARGETS]))):
        with pytest.raises(CheckpointError, match=f"examples: 52 in the checkpoint, {len(data[0])} now"):
            eq.train(plain(), cross_entropy, data, optimizer=momentum, steps=6, out=run, resume=True, **HOW)


def test_a_diff_by_hand() -> None:
    stored = {"sync": "a", "sync.rounds": 3, "epochs": 1, "workers": 2, "keep": 1, "gone": 1}
    refuse_mismatch(stored, {**stored, "epochs": 9, "workers": 5, "keep": 7})
    with pytest.raises(CheckpointError) as caught:
        refuse_mismatch(stored, {"sync": "a", "sync.rounds": 4, "new": 2})
    assert str(caught.value).splitlines()[1:] == [
        "  gone: 1 in the checkpoint, not set now",
        "  new: not set in the checkpoint, 2 now",
        "  sync.rounds: 3 in the checkpoint, 4 now",
    ]


def test_data_of_the_problem_is_what_these_tests_think() -> None:
    assert len(DATA[0]) == 52
