"""A user's own loop has everything that `eq.train` has: resume to the bit, events and a page, evaluation, skipping,
prefetching.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.cli.main import main
from equipoise.comm import heartbeat
from equipoise.core.errors import CheckpointError, NonFinite, PeerLost, UnevenSteps, UserError
from equipoise.observe.events import read_events

EXAMPLES, WORKERS = 203, 3
generator = torch.Generator().manual_seed(5)
INPUTS = torch.randn(EXAMPLES, 8, generator=generator)
TARGETS = (INPUTS @ torch.randn(8, 4, generator=generator)).argmax(1)
DATA = TensorDataset(INPUTS, TARGETS)


class Loop:
    """A loop as a user would write it; `run` returns the parameters of every worker."""

    def __init__(self, **choices: Any):
        self.num_workers = choices.pop("num_workers", 0)
        self.norm = choices.pop("norm", False)
        self.batch = choices.pop("batch", 8)
        self.order = choices.pop("order", None)
        self.partition = choices.pop("partition", None)
        self.spoil: Callable[[int, int], bool] = choices.pop("spoil", lambda rank, step: False)
        self.choices = {"period": 3, "seed": 1} | choices

    def __call__(self, comm: Any, steps: int, resume: bool, save: bool) -> tuple[torch.Tensor, list[int]]:
        torch.manual_seed(7 + comm.rank)
        norm = nn.BatchNorm1d(12) if self.norm else nn.Identity()
        model = nn.Sequential(nn.Linear(8, 12), norm, nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
        sampler = eq.Sampler(DATA, partition=self.partition, order=self.order, batch=self.batch, seed=3)
        loader = DataLoader(DATA, batch_sampler=sampler, num_workers=self.num_workers)
        sizes = []
        with eq.attach(model, optimizer, sampler=sampler, scheduler=scheduler, **self.choices) as together:
            if resume:
                assert together.resume() > 0
            for _ in sampler.epochs(100):
                for x, y in loader:
                    optimizer.zero_grad()
                    with sampler.watching(model):
                        loss = nn.functional.cross_entropy(model(x), y)
                        if self.spoil(comm.rank, together.clock.step):
                            loss = loss * math.nan
                        loss.backward()
                    together.loss = loss.item()
                    optimizer.step()
                    scheduler.step()
                    sizes.append(together.batch)
                    if together.clock.step == steps:
                        break
                if together.clock.step == steps:
                    break
            if "log" in self.choices:
                together.evaluate(DATA, nn.functional.cross_entropy)
            if save:
                together.checkpoint()
        state = [v.reshape(-1).double() for v in model.state_dict().values()]
        return torch.cat(state), sizes

    def run(self, steps: int, *, resume: bool = False, save: bool = False, virtual: bool = True) -> Any:
        rows = eq.spawn(lambda comm: self(comm, steps, resume, save), WORKERS, virtual=virtual, deterministic=True)
        return torch.stack([row[0] for row in rows]), [row[1] for row in rows]


GROWING = {"batch": eq.batch.NormTest(start=4, growth=1.6, eta=0.4, most=20)}


@pytest.mark.parametrize(
    "choices",
    [
        {"norm": True, "buffers": "average"},
        {"sync": eq.sync.DeTAG(), "period": 1},
        {"sync": eq.sync.DiLoCo(delay=1, fragments=2)},
        {"order": eq.order.CDGraB(), "nonfinite": "skip"},
        GROWING,
        {**GROWING, "num_workers": 2},
    ],
    ids=["average", "detag", "streaming", "order", "adaptive", "prefetched"],
)
def test_a_loop_resumes_to_the_same_bits(choices: dict[str, Any], tmp_path: Path) -> None:
    whole, sizes = Loop(**choices).run(17)
    Loop(**choices, log=tmp_path / "run").run(8, save=True)
    resumed, later = Loop(**choices, log=tmp_path / "run").run(17, resume=True)
    assert torch.equal(whole, resumed)
    assert [row[8:] for row in sizes] == later


def test_prefetched_batches_keep_the_sizes_they_were_drawn_with() -> None:
    """Sizes grow while batches wait: every worker changes at the same step, a few steps later than without
    prefetching.
    """
    _, at_once = Loop(**GROWING).run(17)
    _, later = Loop(**GROWING, num_workers=1).run(17)
    grows = [{next(i for i, n in enumerate(row) if n > row[0]) for row in rows} for rows in (at_once, later)]
    assert grows == [{3}, {3 + 2}]  # the first round, and the prefetch factor of one process


def test_processes_give_the_bits_of_virtual_workers(tmp_path: Path) -> None:
    assert torch.equal(Loop().run(7)[0], Loop().run(7, virtual=False)[0])


def test_a_log_is_a_run_that_the_command_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    Loop(log=run, log_every=2).run(8, save=True)
    events = read_events(run)
    assert {event["event"] for event in events} == {"start", "step", "evaluate", "checkpoint", "end"}
    assert [e["step"] for e in events if e["event"] == "step" and e["worker"] == 1] == [2, 4, 6, 8]
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == 8
    assert result["rounds"] == 2
    assert set(result["models"]["mean"]) == {"loss", "accuracy"}
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert "accuracy" in (tmp_path / "page.html").read_text()
    assert main(["cite", str(run)]) == 0
    assert "stich2019local" in capsys.readouterr().out


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    Loop(log=tmp_path / "run").run(3, save=True)
    with pytest.raises(CheckpointError, match="holds a run already: resume it"):
        Loop(log=tmp_path / "run").run(3)
    with pytest.raises(CheckpointError, match=r"period.steps: 3 in the checkpoint, 2 now"):
        Loop(log=tmp_path / "run", period=2).run(6, resume=True)


def test_resume_without_a_checkpoint_begins_at_the_start(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with eq.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), log=tmp_path / "new") as together:
        assert together.resume() == 0
        with pytest.raises(CheckpointError, match="no checkpoint"):
            together.resume(5)
    with eq.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)) as together:
        for call in (together.resume, together.checkpoint):
            with pytest.raises(UserError, match="pass log="):
                call()


def test_a_loss_that_is_not_finite_names_worker_and_step() -> None:
    with pytest.raises(NonFinite, match="worker 1, step 5: the loss is nan"):
        Loop(spoil=lambda rank, step: rank == 1 and step == 4).run(8)


def test_a_skipped_step_counts_for_nothing_on_any_worker() -> None:
    """One worker's NaN neither spreads nor leaves a trace in BatchNorm: models stay finite, training goes on."""
    choices: dict[str, Any] = {"nonfinite": "skip", "sync": eq.sync.AllReduce(), "period": 1, "norm": True}
    models, _ = Loop(**choices, spoil=lambda rank, step: rank == 1 and step == 4).run(8)
    assert models.isfinite().all()
    spared, _ = Loop(**choices, spoil=lambda rank, step: step == 4).run(5)
    before, _ = Loop(**choices).run(4)
    assert torch.equal(spared, before)


def test_accumulated_batches_are_told_from_prefetched_ones() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = eq.Sampler(DATA, batch=8)

    def loop() -> None:
        with eq.attach(model, optimizer, sampler=sampler):
            for number, (x, y) in enumerate(DataLoader(DATA, batch_sampler=sampler)):
                nn.functional.cross_entropy(model(x), y).backward()
                if number % 2:
                    optimizer.step()

    with pytest.raises(UserError, match="pass accumulate=2"):
        loop()


def test_choices_that_do_not_fit_are_refused_as_in_train() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match=r"not SGD and Linear: write eq.attach\(model, optimizer\)"):
        eq.attach(optimizer, model)  # type: ignore[arg-type]
    total = eq.period.TotalSteps(4)
    for choices in ({"order": eq.order.CDGraB()}, {"batch": eq.batch.NormTest()}):
        sampler = eq.Sampler(DATA, **choices)
        with pytest.raises(UserError) as attached:
            eq.attach(model, optimizer, sync=eq.sync.EASGD(), period=total, sampler=sampler)
        with pytest.raises(UserError) as trained:
            eq.train(model, nn.CrossEntropyLoss(), DATA, sync=eq.sync.EASGD(), period=total, workers=2, **choices)
        assert str(attached.value) == str(trained.value)


def test_measured_speeds_divide_the_data_of_a_loop() -> None:
    def loop(comm: Any) -> list[int]:
        with pytest.raises(UserError, match="pass step="):
            eq.Sampler(DATA, partition=eq.partition.Stratified(speeds="measured"))
        weights = torch.randn(64, 64)

        def step() -> None:
            for _ in range(40 if comm.rank == 0 else 10):
                weights @ weights

        sampler = eq.Sampler(DATA, partition=eq.partition.Stratified(speeds="measured"), step=step)
        return [len(block) for block in sampler.blocks]

    rows = eq.spawn(loop, 2)
    assert rows[0] == rows[1]
    assert sum(rows[0]) == EXAMPLES
    assert rows[0][1] > 1.5 * rows[0][0]


def test_measured_speeds_set_the_batch_sizes_of_a_loop() -> None:
    """On a described cluster the fast worker's batches become larger, as in train."""
    cluster = eq.Cluster(rates=[1000.0, 1000.0, 4000.0])
    rule = eq.batch.NormTest(start=6, growth=1.5, eta=0.5, most=30, speeds="measured")
    loop = Loop(batch=rule)
    rows = eq.spawn(lambda comm: loop(comm, 8, False, False), WORKERS, virtual=True, cluster=cluster)
    sizes = [row[1] for row in rows]
    assert sizes[2][4] > 2 * sizes[0][4]


def test_seconds_and_time_of_a_loop_are_counted(tmp_path: Path) -> None:
    Loop(log=tmp_path / "run").run(5)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["seconds"] > 0
    assert all(row["compute"] > 0 for row in result["workers"])


def test_evaluation_changes_nothing_and_names_its_model() -> None:
    def loop(comm: Any) -> None:
        torch.manual_seed(comm.rank)
        model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, sync=eq.sync.EASGD(), period=2) as together:
            for _ in range(3):
                nn.functional.cross_entropy(model(INPUTS), TARGETS).backward()
                optimizer.step()
            before, rng = together.flat.x.clone(), torch.get_rng_state()
            metrics = together.evaluate((INPUTS, TARGETS), nn.functional.cross_entropy, ("local", "mean", "centre"))
            assert torch.equal(before, together.flat.x)
            assert torch.equal(rng, torch.get_rng_state())
            assert set(metrics) == {"local", "mean", "centre"}
            with together.evaluating("mean") as mean:
                loss = nn.functional.cross_entropy(mean(INPUTS), TARGETS).item()
            assert metrics["mean"]["loss"] == pytest.approx(loss, rel=1e-6)

    eq.spawn(loop, WORKERS, virtual=True)


# -- float16: scalers --------------------------------------------------------------------------------------------------
def scaled(rank: int, overflows: list[int], *, fused: bool = False, known: bool = True, **choices: Any) -> torch.Tensor:
    """Six batches, some of which overflow on worker 1; the model of this worker."""
    torch.manual_seed(rank)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with eq.attach(model, optimizer, scaler=scaler if known else None, **choices) as together:
        for batch in range(6):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(INPUTS[batch::6]), TARGETS[batch::6])
            blow_up = batch in overflows and rank == 1
            scaler.scale(loss * (torch.inf if blow_up else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert together.clock.step == 6 - len(overflows)
        assert scaler.get_scale() == 64.0 / 2 ** len(overflows)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("fused", [False, True], ids=["for-each", "fused"])
@pytest.mark.parametrize("sync", [eq.sync.DeTAG(), eq.sync.AllReduce()], ids=lambda sync: type(sync).__name__)
def test_an_overflow_is_a_step_that_nobody_takes(sync: Any, fused: bool) -> None:
    """A fused optimizer is called all the same and skips by itself, but its hooks must not run."""
    choices: dict[str, Any] = {"sync": sync, "fused": fused}
    spared = eq.spawn(lambda comm: scaled(comm.rank, [0, 3], **choices), 2, virtual=True)
    assert all(model.isfinite().all() for model in spared)


def test_a_scaler_that_attach_does_not_know_is_refused_at_the_first_step() -> None:
    """Also where the first step overflows on one worker, and only the others reach the optimizer."""
    for overflows in ([], [0]):
        with pytest.raises(UserError, match="pass scaler="):
            eq.spawn(lambda comm, batches=overflows: scaled(comm.rank, batches, known=False), 2, virtual=True)
    eq.spawn(lambda comm: scaled(comm.rank, [], known=False), 1)  # alone there is nobody to disagree with


# -- choices that would do nothing -------------------------------------------------------------------------------------
def plain_loop(comm: Any, *, known: bool = True, **choices: Any) -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = eq.Sampler(DATA, **choices)
    with eq.attach(model, optimizer, sampler=sampler if known else None):
        for x, y in DataLoader(DATA, batch_sampler=sampler):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_a_batch_rule_without_its_sampler_is_refused() -> None:
    with pytest.raises(UserError, match="^NormTest measures gradients.*pass sampler=sampler to eq.attach$"):
        eq.spawn(lambda comm: plain_loop(comm, known=False, batch=eq.batch.NormTest()), 2, virtual=True)
    eq.spawn(lambda comm: plain_loop(comm, known=False, batch=8), 2, virtual=True)


def test_an_order_that_sees_no_gradients_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        UserError, match=r"^PairBalance learns from gradients and sees none: put `with sampler.watching"
    ):
        eq.spawn(lambda comm: plain_loop(comm, order=eq.order.PairBalance(), batch=8), 2, virtual=True)
    plain_loop(None, known=False, order=eq.order.PairBalance(), batch=8)
    assert "PairBalance learns from gradients and sees none" in caplog.text


# -- loaders without an `eq.Sampler` ---------------------------------------------------------------------------------
def test_a_plain_loader_resumes_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """It draws its order from the global generator, which the checkpoint has."""

    def run(folder: Path, epochs: int) -> Any:
        def loop(comm: Any) -> torch.Tensor:
            torch.manual_seed(5 + comm.rank)
            model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            loader = DataLoader(DATA, batch_size=16, shuffle=True)
            with eq.attach(model, optimizer, period=3, log=folder) as together:
                for _ in range(together.resume() // len(loader), epochs):
                    for x, y in loader:
                        optimizer.zero_grad()
                        nn.functional.cross_entropy(model(x), y).backward()
                        optimizer.step()
                together.checkpoint()
                return together.flat.x.clone()

        return eq.spawn(loop, 2, virtual=True)

    undisturbed = run(tmp_path / "undisturbed", 3)
    run(tmp_path / "resumed", 2)
    resumed = run(tmp_path / "resumed", 3)
    assert all(torch.equal(a, b) for a, b in zip(resumed, undisturbed, strict=True))


# -- the end of the loop -----------------------------------------------------------------------------------------------
def loops(comm: Any, sync: Any, width: int, *steps: list[int]) -> None:
    """One loop after the other, in the same group of workers; `steps` of each worker in each of them."""
    model = nn.Linear(8, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for row in steps:
        with eq.attach(model, optimizer, sync=sync):
            for _ in range(row[comm.rank]):
                model(INPUTS).square().mean().backward()
                optimizer.step()


@pytest.mark.parametrize(
    ("sync", "width", "virtual"),
    [
        (eq.sync.AllReduce(), 4, True),
        (eq.sync.DPSGD(), 4, True),
        (eq.sync.AllReduce(), 4, False),  # through sockets
        (eq.sync.DPSGD(), 4000, False),  # through shared memory
    ],
    ids=["sums", "messages", "sockets", "shared-memory"],
)
def test_uneven_numbers_of_steps_are_reported_as_such(
    sync: Any, width: int, virtual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where others wait for messages of the worker that has left."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    words = r"^worker 1 has left its loop after 2 steps and worker \d is at step 3: all workers must take the same"
    with pytest.raises(UnevenSteps, match=words):
        eq.spawn(lambda comm: loops(comm, sync, width, [4, 4, 4], [3, 2, 3]), 3, virtual=virtual, timeout=20.0)


def test_workers_that_train_alone_may_leave_when_they_like() -> None:
    eq.spawn(lambda comm: loops(comm, eq.sync.NoSync(), 4, [3, 2, 3]), 3, virtual=True)


def trained(comm: Any, **choices: Any) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], Any]:
    torch.manual_seed(comm.rank)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eq.attach(model, optimizer, period=4, **choices) as together:
        for step in range(6):  # the last round was two steps ago
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                model(INPUTS[eq.rank() + 3 * step :: 9]), TARGETS[eq.rank() + 3 * step :: 9]
            ).backward()
            optimizer.step()
        own = [p.detach().clone() for p in model.state_dict().values()]
    return own, model.state_dict(), together.model_state() if "final" not in choices else None


def test_the_model_after_the_loop_is_defined(tmp_path: Path) -> None:
    rows = eq.spawn(lambda comm: trained(comm, log=tmp_path / "run"), WORKERS, virtual=True)
    means = [torch.stack(values).mean(0) for values in zip(*(own[:4] for own, _, _ in rows), strict=True)]
    for own, left, agreed in rows:
        assert all(map(torch.equal, own, left.values())), "without `final` each worker keeps its own"
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(agreed.values(), means, strict=False))
        assert all(map(torch.equal, agreed.values(), rows[0][2].values())), "the same on all workers"
    saved = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert all(torch.equal(saved[name], value) for name, value in rows[0][2].items())
    final = eq.spawn(lambda comm: trained(comm, final="mean"), WORKERS, virtual=True)
    assert all(map(torch.equal, final[1][1].values(), rows[0][2].values()))
    centre = eq.spawn(lambda comm: trained(comm, final="centre", sync=eq.sync.EASGD()), WORKERS, virtual=True)
    assert all(map(torch.equal, centre[0][1].values(), centre[2][1].values()))
    eq.spawn(lambda comm: trained(comm, final="centre", sync=eq.sync.EASGD()), 1)
    for choices, words in (({"final": "best"}, "mean or centre"), ({"final": "centre"}, "has no centre")):
        with pytest.raises(UserError, match=words):
            trained(eq.spawn(lambda comm: comm, 1)[0], **choices)


def test_a_worker_knows_its_number() -> None:
    for virtual in (True, False):
        assert eq.spawn(lambda comm: (eq.rank(), eq.world_size()), 2, virtual=virtual) == [(0, 2), (1, 2)]
    assert issubclass(eq.errors.NonFinite, eq.errors.WorkerError)


def test_a_loop_says_how_long_it_waits_and_how_it_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(comm: Any, **choices: Any) -> None:
        with eq.attach(model, optimizer, sync=eq.sync.AllReduce(), **choices):
            if comm.rank == 1:
                time.sleep(30)
            model(INPUTS).square().mean().backward()
            optimizer.step()

    with pytest.raises(PeerLost, match=r"^worker 1 .*\(timeout 1 s\)"):
        eq.spawn(lambda comm: loop(comm, timeout=1.0), 2)
    with pytest.raises(UserError, match="deterministic is False on worker 0 and True on worker 1: pass the same"):
        eq.spawn(lambda comm: loop(comm, deterministic=bool(comm.rank)), 2, virtual=True)
    with pytest.raises(UserError, match="timeout = 0: must be above zero"):
        eq.attach(model, optimizer, timeout=0)


def test_the_loss_may_be_the_tensor_itself(tmp_path: Path) -> None:
    def main(comm: Any) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, log=tmp_path / "run", log_every=1) as together:
            x, y = DATA[:8]
            together.loss = nn.functional.cross_entropy(model(x), y)
            together.loss.backward()
            optimizer.step()
            together.loss = torch.zeros(3)
            with pytest.raises(UserError, match="the shape \\[3\\]"):
                optimizer.step()

    eq.spawn(main, 1, virtual=True)
    losses = [e["loss"] for e in read_events(tmp_path / "run") if e["event"] == "step"]
    assert len(losses) == 1
    assert isinstance(losses[0], float)
