"""A user's own loop with `eq.attach` and `eq.Sampler`: loaders, schedulers, scalers, NaN, unequal workers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.core.errors import NonFinite, UserError
from equipoise.core.random import seed_worker
from equipoise.loop.result import counters
from equipoise.testing.promises import BITS, same

from . import toy

GROWING = eq.batch.NormTest(start=4, most=16, growth=1.3, eta=0.2)  # sizes change at nearly every round
DATA = TensorDataset(toy.INPUTS, toy.TARGETS)


def sizes_of(folder: Path) -> list[list[int]]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["new"] for event in events if event["event"] == "batch"]


@pytest.mark.parametrize(
    "method",
    [eq.sync.DeTAG(), eq.sync.LGRAWA(), eq.order.CDGraB(), eq.batch.NormTest(), eq.period.PostLocal()],
    ids=lambda method: type(method).__name__,
)
def test_processes_give_the_bits_of_virtual_workers(method: Any) -> None:
    same(toy.attach(method, virtual=False), toy.attach(method), BITS)


@pytest.mark.parametrize(
    "method",
    [GROWING, eq.order.CDGraB(), eq.sync.DPSGD(), eq.partition.Shards()],
    ids=lambda method: type(method).__name__,
)
def test_batches_drawn_ahead_resume_to_the_same_bits(method: Any, tmp_path: Path) -> None:
    """With `num_workers = 2` four batches are drawn ahead, also at a checkpoint, at sizes that change later."""
    ahead = {"workers": 2, "steps": 18, "num_workers": 2}
    undisturbed = toy.attach(method, **ahead, log=tmp_path / "undisturbed")
    for steps in (9, 18):
        resumed = toy.attach(method, **{**ahead, "steps": steps}, log=tmp_path / "resumed")
    same(resumed, undisturbed, BITS)
    if method is GROWING:
        sizes = sizes_of(tmp_path / "undisturbed")
        assert len({tuple(row) for row in sizes}) >= 4, sizes
        assert sizes_of(tmp_path / "resumed") == sizes
    else:
        same(undisturbed, toy.attach(method, workers=2, steps=18), BITS)


def test_sizes_change_alike_by_train_and_by_attach(tmp_path: Path) -> None:
    expected = toy.train(GROWING, out=tmp_path / "train").result
    same(toy.attach(GROWING, log=tmp_path / "attach"), expected, BITS)
    assert sizes_of(tmp_path / "attach") == sizes_of(tmp_path / "train")
    assert len(sizes_of(tmp_path / "train")) >= 4


def test_scheduler_scaler_and_a_plain_loader_resume_to_the_same_bits(tmp_path: Path) -> None:
    """The loader draws from the global generator, as by default; one worker overflows once before the checkpoint."""

    def run(folder: Path, steps: int) -> dict[str, Any]:
        def loop(comm: Any) -> dict[str, Any]:
            seed_worker(3, comm.rank)
            model = toy.model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
            sampler = eq.Sampler(DATA, batch=8)
            loader = DataLoader(DATA, batch_sampler=sampler)
            extra = {"scheduler": scheduler, "scaler": scaler, "sampler": sampler, "log": folder}
            with eq.attach(model, optimizer, sync=eq.sync.SlowMo(), period=2, **extra) as together:
                taken = together.resume()
                batches = 0
                while together.clock.step < steps:
                    for x, y in loader:
                        batches += 1
                        optimizer.zero_grad()
                        loss = nn.functional.cross_entropy(model(x), y)
                        blow_up = taken == 0 and batches == 3 and comm.rank == 1
                        scaler.scale(loss * (torch.inf if blow_up else 1.0)).backward()
                        scaler.step(optimizer)
                        scaler.update()
                        scheduler.step()
                        if together.clock.step == steps:
                            break
                together.checkpoint()
                scale, lr = scaler.get_scale(), scheduler.get_last_lr()
            return counters(together.step) | {"scale": scale, "lr": lr}

        return eq.spawn(loop, 2, virtual=True)[0]

    undisturbed = run(tmp_path / "undisturbed", 17)
    for steps in (5, 12, 17):
        resumed = run(tmp_path / "resumed", steps)
    same(resumed, undisturbed, (*BITS, "scale", "lr"))
    assert resumed["scale"] not in (64.0, 32.0)  # it fell at the overflow and grew afterwards


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "processes"])
@pytest.mark.parametrize("period", [1, 2])
def test_nonfinite_by_train_and_by_attach(virtual: bool, period: int) -> None:
    inputs = toy.INPUTS.clone()
    inputs[77] = torch.nan
    data = TensorDataset(inputs, toy.TARGETS)

    def run(nonfinite: str) -> dict[str, Any]:
        def loop(comm: Any) -> dict[str, Any]:
            seed_worker(0, comm.rank)
            model = toy.model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            sampler = eq.Sampler(data, batch=8)
            loader = DataLoader(data, batch_sampler=sampler, generator=torch.Generator())
            with eq.attach(model, optimizer, period=period, sampler=sampler, nonfinite=nonfinite) as together:
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    together.loss = loss.item()
                    optimizer.step()
            return counters(together.step)

        return eq.spawn(loop, 2, virtual=virtual, deterministic=True)[0]

    chosen: dict[str, Any] = {"workers": 2, "batch": 8, "period": period, "virtual": virtual, "deterministic": True}
    chosen |= {"epochs": 1, "optimizer": lambda p: torch.optim.SGD(p, lr=0.2)}
    train = eq.train(toy.model, nn.CrossEntropyLoss(), (inputs, toy.TARGETS), nonfinite="skip", **chosen).result
    skipped = run("skip")
    same(skipped, train, BITS)
    assert skipped["consensus"] == skipped["consensus"], "the parameters are finite"
    with pytest.raises(NonFinite) as by_train:
        eq.train(toy.model, nn.CrossEntropyLoss(), (inputs, toy.TARGETS), **chosen)
    with pytest.raises(NonFinite, match="the loss is nan") as by_attach:
        run("stop")
    assert (by_attach.value.rank, by_attach.value.step) == (by_train.value.rank, by_train.value.step)


def test_a_worker_that_runs_dry_counts_for_nothing(tmp_path: Path) -> None:
    """Worker 1 has two examples and the others fifty: the loss of one that it is given again makes it no leader."""
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"blocks": [list(range(50)), [50, 51], list(range(52, 102))]}))
    partition = eq.partition.FromFile(path=str(path))
    inputs, targets = toy.INPUTS[:102], toy.TARGETS[:102]
    sync = eq.sync.LSGD(window=1)

    def model() -> nn.Module:
        torch.manual_seed(1)
        # Without dropout: eq.train makes no forward pass where there is no example.
        norm = nn.Unflatten(1, (4, 2)), nn.BatchNorm1d(4), nn.Flatten()
        return nn.Sequential(nn.Linear(8, 8), *norm, nn.Linear(8, 4))

    def loop(comm: Any) -> dict[str, Any]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        sampler = eq.Sampler((inputs, targets), partition=partition, batch=8)
        with eq.attach(net, optimizer, sync=sync, period=2, sampler=sampler) as together:
            for _ in range(2):
                for indices in sampler:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(net(inputs[indices]), targets[indices])
                    loss.backward()
                    together.loss = loss.item()
                    optimizer.step()
        batches = next(b for name, b in net.named_buffers() if name.endswith("tracked"))
        assert batches == 2 * (2 if comm.rank == 1 else 7), "statistics of its own batches alone"
        return counters(together.step)

    chosen: dict[str, Any] = {"partition": partition, "batch": 8, "sync": sync, "period": 2, "workers": 3, "epochs": 2}
    expected = eq.train(
        model, nn.CrossEntropyLoss(), (inputs, targets), optimizer=lambda p: torch.optim.SGD(p, lr=0.2), **chosen
    ).result
    same(eq.spawn(loop, 3, virtual=True)[0], expected, BITS)


class Counting(nn.Module):
    """A buffer that follows the examples, as BatchNorm's do, and does nothing else."""

    examples: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("examples", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.examples += len(x)
        return x


@pytest.mark.parametrize(("passes", "ahead"), [(1, 0), (2, 0), (2, 2)])
def test_a_worker_that_runs_dry_within_a_step_takes_that_of_train(passes: int, ahead: int, tmp_path: Path) -> None:
    """Worker 1 has an example for the first of three batches of its second step: with the others it does nothing."""
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"blocks": [list(range(24)), [24, 25, 26, 27]]}))
    partition = eq.partition.FromFile(path=str(path))
    data = toy.INPUTS[:28], toy.TARGETS[:28]
    chosen: dict[str, Any] = {"sync": eq.sync.PeriodicAverage(), "period": 2}

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(Counting(), nn.Linear(8, 4))

    def loop(comm: Any) -> dict[str, torch.Tensor]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        sampler = eq.Sampler(data, partition=partition, batch=4)
        loader = DataLoader(TensorDataset(*data), batch_sampler=sampler, num_workers=ahead)
        with eq.attach(net, optimizer, sampler=sampler, accumulate=3, **chosen):
            for _ in range(2):
                for number, (x, y) in enumerate(loader):
                    losses = [nn.functional.cross_entropy(net(x), y) for _ in range(passes)]
                    (sum(losses) / (3 * passes)).backward()
                    if number % 3 == 2:
                        optimizer.step()
                        optimizer.zero_grad()
        return net.state_dict()

    got = eq.spawn(loop, 2, virtual=True)[1]
    assert got["0.examples"] == 2 * 4 * passes, "statistics of its own examples alone"
    chosen |= {"partition": partition, "batch": [12, 3], "workers": 2, "epochs": 2}
    optimizer = functools.partial(torch.optim.SGD, lr=0.2)
    trained = eq.train(model, nn.CrossEntropyLoss(), data, optimizer=optimizer, **chosen)
    for name, value in trained.model.named_parameters():
        torch.testing.assert_close(got[name], value.detach())


def dry_from_the_second_step(folder: Path) -> tuple[TensorDataset, Any]:
    """Worker 1 has an example for the first of four steps."""
    path = folder / "blocks.json"
    path.write_text(json.dumps({"blocks": [list(range(16)), [16]]}))
    return TensorDataset(toy.INPUTS[:17], toy.TARGETS[:17]), eq.partition.FromFile(path=str(path))


def test_a_resumed_worker_that_has_run_dry_keeps_its_buffers(tmp_path: Path) -> None:
    data, partition = dry_from_the_second_step(tmp_path)

    def loop(comm: Any, stop: int) -> float:
        net = nn.Sequential(Counting(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        sampler = eq.Sampler(data, partition=partition, batch=4)
        with eq.attach(net, optimizer, sampler=sampler, log=tmp_path / "run") as together:
            together.resume()
            for x, y in DataLoader(data, batch_sampler=sampler):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                if together.clock.step == stop:
                    break
            together.checkpoint()
        return net.state_dict()["0.examples"].item()

    for stop in (1, 2, 3, 4):
        assert eq.spawn(lambda comm, stop=stop: loop(comm, stop), 2, virtual=True) == [4 * stop, 1]


def test_an_overflow_leaves_the_buffers_of_a_worker_that_has_run_dry(tmp_path: Path) -> None:
    """In the last step, after which no other one of the epoch would put them back."""
    data, partition = dry_from_the_second_step(tmp_path)

    def loop(comm: Any) -> float:
        net = nn.Sequential(Counting(), nn.Linear(8, 4))
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.2), torch.amp.GradScaler("cpu", init_scale=64.0)
        sampler = eq.Sampler(data, partition=partition, batch=4)
        with eq.attach(net, optimizer, sampler=sampler, scaler=scaler):
            for number, (x, y) in enumerate(DataLoader(data, batch_sampler=sampler)):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                scaler.scale(loss * (torch.inf if number == 3 and comm.rank == 0 else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
        return net.state_dict()["0.examples"].item()

    assert eq.spawn(loop, 2, virtual=True) == [16, 1]


def test_a_block_that_is_entered_again_knows_batches_that_are_given_again(tmp_path: Path) -> None:
    data, partition = dry_from_the_second_step(tmp_path)

    def loop(comm: Any) -> float:
        net = nn.Sequential(Counting(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        sampler = eq.Sampler(data, partition=partition, batch=4)
        together = eq.attach(net, optimizer, sampler=sampler, accumulate=2)
        for _ in range(2):
            with together:
                for number, (x, y) in enumerate(DataLoader(data, batch_sampler=sampler)):
                    nn.functional.cross_entropy(net(x), y).div(2).backward()
                    if number % 2:
                        optimizer.step()
                        optimizer.zero_grad()
        return net.state_dict()["0.examples"].item()

    assert eq.spawn(loop, 2, virtual=True)[1] == 17, "worker 0's sixteen, which all receive on entering, and its own"


CLUSTER = "[[workers]]\nspeed = 1.0\n[[workers]]\nspeed = 1.0\n[[workers]]\nspeed = 3.0\n"


@pytest.mark.parametrize(
    ("method", "other"),
    [
        (eq.period.TotalSteps(steps=4), {"sync": eq.sync.PeriodicAverage()}),
        (eq.batch.NormTest(start=4, most=32, eta=0.3, speeds="measured"), {}),
    ],
    ids=["total-steps", "measured-speeds"],
)
def test_unequal_workers_by_train_and_by_attach(method: Any, other: dict[str, Any], tmp_path: Path) -> None:
    """Simulated speeds decide how many steps a worker takes, or how many examples; resumed too."""
    (tmp_path / "cluster.toml").write_text(CLUSTER + '[links]\nbandwidth = "1 Gbit"\nlatency = "1 us"\n')
    cluster = eq.Cluster.load(tmp_path / "cluster.toml")
    expected = toy.train(method, workers=3, cluster=cluster, steps=20, out=tmp_path / "train", **other).result
    steps = [row["steps"] for row in expected["workers"]]
    if method.axis == "period":
        assert steps[2] > 1.5 * steps[0], "the fast worker takes more steps"
    else:
        assert any(new[2] > 1.5 * new[0] for new in sizes_of(tmp_path / "train")), "the fast worker takes more examples"
    same(toy.attach(method, workers=3, cluster=cluster, steps=20, **other), expected, BITS)
    for steps in (8, 20):
        resumed = toy.attach(method, workers=3, cluster=cluster, steps=steps, log=tmp_path / "attach", **other)
    same(resumed, expected, BITS)


@pytest.mark.parametrize(
    ("method", "fix"),
    [
        (eq.sync.MGRAWA(source="fresh"), "source='train'"),
        (eq.batch.NormTest(estimator="examples"), "estimator='workers'"),
    ],
    ids=["fresh-gradients", "example-gradients"],
)
def test_what_only_train_can_do_is_refused_with_the_fix(method: Any, fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        toy.attach(method)


def test_the_log_has_epochs_and_seconds(tmp_path: Path) -> None:
    toy.attach(eq.sync.AllReduce(), log=tmp_path, log_every=1)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step" and event["worker"] == 0]
    assert [event["epoch"] for event in steps] == [0] * 7 + [1] * 7 + [2] * 4
    seconds = [event["seconds"] for event in steps]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] < seconds[-1]
