"""Stop anywhere, resume, get the same bits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler as lr

import equipoise as eq
from equipoise.checkpoint.store import read_manifest, read_worker
from equipoise.core.errors import WorkerError
from equipoise.observe.events import read_events

from ..comm.workers import both
from ..loop.problem import DATA, adam, momentum, plain, train, with_norm

# Two workers with 26 examples, batches of 6: five steps an epoch. Stops are in the middle of an epoch, and one at its
# end.
KEYS = ("params_sha256", "models", "steps", "samples", "epochs", "rounds", "messages", "bytes", "consensus")


def equal(one: eq.Run, other: eq.Run) -> None:
    for key in KEYS:
        assert one.result[key] == other.result[key], key
    theirs = other.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in one.model.state_dict().items())


SYNCS = {
    "all-reduce": {"sync": eq.sync.AllReduce()},
    "periodic-average": {"sync": eq.sync.PeriodicAverage(), "period": 4},
    "none": {"sync": eq.sync.NoSync()},
}


@pytest.mark.parametrize(("virtual", "stops"), [(True, (3, 5, 7)), (False, (8,))], ids=["virtual", "processes"])
@pytest.mark.parametrize(
    ("optimizer", "sync"), [(momentum, "all-reduce"), (adam, "periodic-average"), (momentum, "none")]
)
def test_stop_and_resume(optimizer: Any, sync: str, stops: tuple[int, ...], virtual: bool, tmp_path: Path) -> None:
    """Momentum, Adam's moments, a schedule, dropout, BatchNorm, unequal progress of the period: everything is there."""
    how = {
        "workers": 2, "batch": 6, "virtual": virtual, "deterministic": True, "buffers": "average", **SYNCS[sync],
        "scheduler": lambda o: lr.CosineAnnealingLR(o, T_max=20),
    }  # fmt: skip
    whole = train(with_norm(), optimizer, steps=13, **how)
    for stop in stops:
        part = train(with_norm(), optimizer, steps=stop, out=tmp_path / "run", resume=stop != stops[0], **how)
        assert part.result["steps"] == stop
    resumed = train(with_norm(), optimizer, steps=13, out=tmp_path / "run", resume=True, **how)
    equal(resumed, whole)


class Noisy(torch.nn.Linear):
    """Draws from every global generator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + (random.gauss(0.0, 1.0) + np.random.standard_normal() + torch.randn(())))


def test_every_generator_goes_on_also_from_plain_numbers(tmp_path: Path) -> None:
    """One more `gauss` than pairs: the second of a pair is part of the state. Python's state was plain numbers once."""
    model = Noisy(DATA[0].shape[1], 3)
    whole = train(model, momentum, steps=8, workers=2, batch=6)
    train(model, momentum, steps=3, workers=2, batch=6, keep=9, out=tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-3"
    equal(train(model, momentum, steps=8, workers=2, batch=6, keep=9, out=tmp_path / "run", resume=3), whole)
    manifest = read_manifest(path)
    for rank, row in enumerate(manifest["files"]):
        state = read_worker(path, manifest, rank)
        version, words, gauss = state["rng"]["python"]
        state["rng"]["python"] = (version, tuple(words.tolist()), gauss)
        torch.save(state, path / row["name"])
        row["sha256"] = hashlib.sha256((path / row["name"]).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    equal(train(model, momentum, steps=8, workers=2, batch=6, keep=9, out=tmp_path / "run", resume=3), whole)


@pytest.mark.parametrize(
    "order", [eq.order.Reshuffle(), eq.order.ShuffleOnce(), eq.order.FlipFlop(), eq.order.Sequential()]
)
def test_every_order_goes_on(order: Any, tmp_path: Path) -> None:
    how = {"workers": 3, "batch": eq.batch.Fixed([2, 3, 4]), "order": order}
    whole = train(plain(), adam, epochs=3, **how)
    train(plain(), adam, epochs=1.5, out=tmp_path / "run", **how)
    equal(train(plain(), adam, epochs=3, out=tmp_path / "run", resume=True, **how), whole)


def test_a_run_stopped_again_and_again(tmp_path: Path) -> None:
    whole = train(with_norm(), adam, steps=9, workers=2, batch=6)
    for steps in (1, 2, 5, 6, 9):
        run = train(with_norm(), adam, steps=steps, workers=2, batch=6, out=tmp_path / "run", resume=steps > 1)
    equal(run, whole)


def test_begun_on_virtual_workers_and_ended_on_processes(tmp_path: Path) -> None:
    """What the number of workers means does not depend on what they are."""
    how = {"workers": 3, "batch": 6, "deterministic": True}
    whole = train(with_norm(), momentum, steps=8, **how)
    train(with_norm(), momentum, steps=4, out=tmp_path / "run", virtual=True, **how)
    equal(train(with_norm(), momentum, steps=8, out=tmp_path / "run", virtual=False, resume=True, **how), whole)


SCHEDULERS = {
    "step": lambda o: lr.StepLR(o, 3, 0.5),
    "multi-step": lambda o: lr.MultiStepLR(o, [2, 6]),
    "one-cycle": lambda o: lr.OneCycleLR(o, max_lr=0.3, total_steps=20),
    "lambda": lambda o: lr.LambdaLR(o, lambda step: 0.9**step),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "sequence": lambda o: lr.SequentialLR(o, [lr.ConstantLR(o, 0.1, 4), lr.ExponentialLR(o, 0.9)], [4]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_schedule_goes_on(name: str, tmp_path: Path) -> None:
    """Their states load without running code, and the next rate is the one that would have come."""
    how = {"scheduler": SCHEDULERS[name], "batch": 6}
    whole = train(plain(), momentum, steps=9, **how)
    train(plain(), momentum, steps=5, out=tmp_path / "run", **how)
    equal(train(plain(), momentum, steps=9, out=tmp_path / "run", resume=True, **how), whole)


def test_simulated_time_goes_on(tmp_path: Path) -> None:
    cluster = eq.Cluster.from_dict({"workers": [{"speed": 0.1}, {"speed": 1}], "links": {"latency": "3 ms"}})
    how = {"workers": 2, "batch": 6, "cluster": cluster, "period": 2}
    whole = train(plain(), momentum, steps=9, **how)
    train(plain(), momentum, steps=5, out=tmp_path / "run", **how)
    resumed = train(plain(), momentum, steps=9, out=tmp_path / "run", resume=True, **how)
    equal(resumed, whole)
    assert resumed.result["simulated_seconds"] == pytest.approx(whole.result["simulated_seconds"], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(6, 8).to(dtype)
            self.last = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.tanh(self.first(x.to(dtype))).float())

    how = {"workers": 2, "batch": 6}
    whole = train(Half(), momentum, steps=8, **how)
    train(Half(), momentum, steps=4, out=tmp_path / "run", **how)
    equal(train(Half(), momentum, steps=8, out=tmp_path / "run", resume=True, **how), whole)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_killed_run_resumes_to_the_bits_of_an_undisturbed_one(workers: int, tmp_path: Path) -> None:
    """kill -9 in the eighth step, checkpoints every three: it goes on from the sixth."""
    alive = tmp_path / "killed already"

    def deadly(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        deadly.calls += 1
        if deadly.calls == 8 and outputs.requires_grad and not alive.exists():
            alive.touch()
            while not (tmp_path / "run" / "checkpoints" / "step-6").exists():  # it is written while the loop goes on
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(outputs, targets)

    deadly.calls = 0
    how = {
        "optimizer": momentum,
        "workers": workers,
        "batch": 4,
        "virtual": False,
        "deterministic": True,
        "epochs": 3,
        "evaluate_every": 99,
    }
    if workers == 1:
        # One worker runs in this very process: kill a copy of it.
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            eq.train(plain(), deadly, DATA, out=tmp_path / "run", checkpoint_every=3, **how)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    else:
        with pytest.raises(WorkerError, match="was killed by SIGKILL at step 8"):
            eq.train(plain(), deadly, DATA, out=tmp_path / "run", checkpoint_every=3, **how)
    deadly.calls = 100
    whole = eq.train(plain(), cross_entropy, DATA, **how)
    resumed = eq.train(plain(), deadly, DATA, out=tmp_path / "run", resume=True, **how)
    equal(resumed, whole)
    events = read_events(tmp_path / "run")
    assert [e["step"] for e in events if e["event"] == "resume" and e["worker"] == 0] == [6]


def test_a_finished_run_can_be_asked_again(tmp_path: Path) -> None:
    whole = train(with_norm(), adam, steps=7, workers=2, batch=6, out=tmp_path / "run")
    equal(train(with_norm(), adam, steps=7, workers=2, batch=6, out=tmp_path / "run", resume=True), whole)


def test_what_may_change_changes(tmp_path: Path) -> None:
    """The length, how often things are written and how large a forward pass may be are free; the numbers stay."""
    whole = train(plain(), momentum, steps=9, workers=2, batch=6)
    train(plain(), momentum, epochs=0.5, workers=2, batch=6, out=tmp_path / "run", checkpoint_every=1, keep=1)
    how = {
        "keep": 3,
        "checkpoint_every": 2,
        "log_every": 3,
        "evaluate_every": 2,
        "nonfinite": "skip",
        "timeout": 50.0,
        "micro": 100,
    }
    equal(train(plain(), momentum, steps=9, workers=2, batch=6, out=tmp_path / "run", resume=True, **how), whole)


def test_events_are_one_history(tmp_path: Path) -> None:
    """Lines that a lost attempt wrote behind the checkpoint are left out, and a half-written one too."""
    how = {"workers": 2, "batch": 6, "log_every": 1, "out": tmp_path / "run"}
    train(plain(), momentum, steps=6, checkpoint_every=4, **how)
    with open(tmp_path / "run" / "events.jsonl", "a") as file:
        file.write('{"event": "step", "work')
    os.rename(tmp_path / "run" / "checkpoints" / "step-6", tmp_path / "lost")
    with open(tmp_path / "run" / "events.jsonl", "a") as file:
        file.write("\n")
    train(plain(), momentum, steps=8, resume=True, **how)
    for worker in (0, 1):
        steps = [e["step"] for e in read_events(tmp_path / "run") if e["event"] == "step" and e["worker"] == worker]
        assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [e["event"] for e in read_events(tmp_path / "run") if e["event"] in ("end", "stopped")] == ["end", "end"]


# -- signals ------------------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_a_checkpoint(
    number: signal.Signals, code: int, virtual: bool, tmp_path: Path
) -> None:
    """All workers agree on the step after which they stop, also in the middle of an epoch, and the rest can be had
    later.
    """
    told = tmp_path / "told"

    def interrupted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        interrupted.calls += 1
        if interrupted.calls == 6 and not told.exists():
            told.touch()
            os.kill(os.getpid() if virtual else os.getppid(), number)
        return cross_entropy(outputs, targets)

    interrupted.calls = 0
    how = {
        "optimizer": momentum,
        "workers": 2,
        "batch": 2,
        "virtual": virtual,
        "deterministic": True,
        "steps": 60,
        "log_every": 4,
    }
    first = eq.train(with_norm(), interrupted, DATA, out=tmp_path / "run", **how)
    assert first.stopped == code
    assert 3 <= first.result["steps"] < 60
    assert not (tmp_path / "run" / "result.json").exists(), "it is not finished"
    assert (tmp_path / "run" / "checkpoints" / f"step-{first.result['steps']}").is_dir()
    resumed = eq.train(with_norm(), interrupted, DATA, out=tmp_path / "run", resume=True, **how)
    assert resumed.stopped == 0
    equal(resumed, eq.train(with_norm(), cross_entropy, DATA, **how))
    assert (tmp_path / "run" / "result.json").exists()


@both
def test_a_second_ctrl_c_ends_at_once(virtual: bool, tmp_path: Path) -> None:
    """Nobody goes on training behind the user's back."""
    launcher, told = os.getpid(), tmp_path / "told"

    def impatient(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(FileExistsError):
            told.mkdir()  # for one worker alone
            for _ in range(2):
                os.kill(launcher, signal.SIGINT)
                time.sleep(0.2)
        return cross_entropy(outputs, targets)

    with pytest.raises(KeyboardInterrupt):
        eq.train(plain(), impatient, DATA, workers=2, steps=100, batch=2, log_every=100, virtual=virtual)
    for thread in [t for t in threading.enumerate() if t.name.startswith("worker-")]:
        thread.join(timeout=10.0)
        assert not thread.is_alive()
