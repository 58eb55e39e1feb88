"""Rules in real runs: one collective, the same decision everywhere, exact accounting, stop and resume."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.comm.ledger import mean_cost
from equipoise.comm.piggyback import Piggyback
from equipoise.core.errors import UserError
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.lr_schedule import LRSchedule, gain
from equipoise.loop.worker import Worker
from equipoise.observe.events import read_events

from ..contract import toy

ELEMENTS = 160  # of the toy model
ESTIMATORS = ("workers", "examples", "pseudo")


def train(rule: Any, *, data: Any = (toy.INPUTS, toy.TARGETS), **changes: Any) -> eq.Run:
    chosen = {**toy.settings(rule), "sync": eq.sync.PeriodicAverage(), "period": 4, "steps": 40, **changes}
    return eq.train(toy.model, nn.CrossEntropyLoss(), data, **chosen)


def workers_of(rule: Any, steps: int, read: Any = None, **changes: Any) -> list[Any]:
    """Run the loop by hand on 4 virtual workers; `read(worker)` after each step, its results by rank."""
    job = Job(
        model=toy.model,
        train=Source((toy.INPUTS, toy.TARGETS)),
        length=Length(steps=1000),
        optimizer=changes.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.2)),
        **{
            "loss": nn.CrossEntropyLoss(),
            "batch": rule,
            "sync": eq.sync.PeriodicAverage(),
            "period": eq.period.Every(4),
            **changes,
        },
    )

    def loop(comm: Comm) -> list[Any]:
        worker = Worker(job, comm)
        worker.model.train()
        rows = []
        with worker.observer:
            for _ in range(steps):
                if worker.position.steps_left == 0:
                    worker.clock.epoch += 1
                    worker.position.begin(worker.clock.epoch)
                worker.step()
                rows.append(read(worker) if read is not None else list(worker.batch.sizes()))
        return rows

    return eq.spawn(loop, toy.WORKERS, virtual=True)


@pytest.mark.parametrize("gradient", ["last", "first"])
@pytest.mark.parametrize("sync", [eq.sync.PeriodicAverage(), eq.sync.AllReduce(), eq.sync.DPSGD()])
def test_sizes_follow_from_the_workers_gradients_by_the_formula(sync: Any, gradient: str, tmp_path: Path) -> None:
    """The gradients of the step that ends or begins a round, as backward left them, in the formula of the paper."""
    every_step = sync.needs().every_step
    period = eq.period.Every(1 if every_step else 4)
    gradients: dict[int, list[np.ndarray]] = {}

    class Spy(eq.batch.NormTest):
        def observe(self, due: bool) -> Piggyback | None:
            flat = self.context.flat
            assert flat is not None
            if due if gradient == "last" else self.context.clock.step % period.steps == 0:
                gradients.setdefault(self.context.rank, []).append(flat.copy_gradient().double().numpy())
            return super().observe(due)

    rule = Spy(start=8, most=10**6, eta=0.9, growth=math.inf, shrink=True, gradient=gradient)
    nesterov = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True)  # noqa: E731  (changes gradients in place)
    workers_of(rule, 8, sync=sync, period=period, optimizer=nesterov, clip=0.01, folder=tmp_path)
    events = [event for event in read_events(tmp_path) if event["event"] == "batch"]
    assert len(events) == (8 if every_step else 2)
    b = 8
    for at, event in enumerate(events[:4]):
        rows = np.stack([gradients[rank][at] for rank in range(4)])
        mean = rows.mean(0)
        variance = b / 3 * ((rows - mean) ** 2).sum()
        assert event["variance"] == pytest.approx(variance, rel=1e-5)
        assert event["norm"] == pytest.approx(mean @ mean, rel=1e-5)
        b = max(8, math.ceil(variance / (4 * 0.81 * mean @ mean)))
        assert event["new"] == [b] * 4


@pytest.mark.parametrize("tested", ["mean", "own"])
@pytest.mark.parametrize(
    ("estimator", "sync"),
    [*((e, eq.sync.PeriodicAverage()) for e in ESTIMATORS), *((e, eq.sync.AllReduce()) for e in ESTIMATORS[:2])],
)
def test_the_variance_along_the_gradient_under_test(estimator: str, tested: str, sync: Any, tmp_path: Path) -> None:
    """Workers with batches of unequal sizes: what the event says is the definition, from gradients taken beside it."""
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    class Spy(eq.batch.InnerProduct):
        def observe(self, due: bool) -> Piggyback | None:
            context = self.context
            assert context.flat is not None
            assert context.example_gradients is not None
            rows = torch.stack(context.example_gradients(0)).double().numpy()
            seen[context.rank] = context.flat.copy_gradient().double().numpy(), rows
            return super().observe(due)

    rule = Spy(start=6, theta=math.inf, estimator=estimator, tested=tested, examples=0, speeds=[1, 2, 2, 3])
    workers_of(rule, 1, sync=sync, period=eq.period.Every(1), folder=tmp_path)
    (event,) = [event for event in read_events(tmp_path) if event["event"] == "batch"]
    batches, ranks = np.array([3.0, 6.0, 6.0, 9.0]), range(4)
    vectors, rows = [np.stack([seen[m][0] for m in ranks]), [seen[m][1] for m in ranks]]
    assert [len(r) for r in rows] == batches.tolist()
    v = batches @ vectors / batches.sum()
    if estimator == "examples":
        squares = [
            ((r - r.mean(0)) @ (v if tested == "mean" else own)) ** 2 for r, own in zip(rows, vectors, strict=True)
        ]
        along = np.concatenate(squares).sum() / (24 - 4)
    elif tested == "mean":
        along = batches @ (vectors @ v - v @ v) ** 2 / 3
    else:
        along = 0.0
        for m in ranks:
            others = [other for other in ranks if other != m]
            n, products = batches[others], vectors[others] @ vectors[m]
            along += batches[m] / 24 * (n @ (products - n @ products / n.sum()) ** 2) / 2
    assert event["along"] == pytest.approx(along, rel=1e-3 if estimator == "pseudo" else 1e-4)
    noise = event["variance"] * (4 if tested == "own" else 1) / 24
    if estimator == "examples" and tested == "own":
        assert event["norm"] == pytest.approx(batches @ (vectors**2).sum(1) / 24, rel=1e-4)
    assert event["norm"] - event["square"] == pytest.approx(noise, rel=1e-4)
    assert math.isfinite(event["along"])


def test_a_worker_without_examples_knows_the_gradient_under_test(tmp_path: Path) -> None:
    """All workers read |v|^2 from the first one, which has an example for the first of two tests only."""
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"blocks": [[0], *(list(range(first, toy.EXAMPLES, 3)) for first in (1, 2, 3))]}))
    rule = eq.batch.InnerProduct(start=8, theta=math.inf, estimator="examples", tested="mean")
    chosen: dict[str, Any] = {"partition": eq.partition.FromFile(path=str(path)), "period": eq.period.Every(1)}
    rows = workers_of(rule, 2, lambda w: w.clock.batch, folder=tmp_path, **chosen)
    assert rows[0] == [1, 0]
    norms = [event["norm"] for event in read_events(tmp_path) if event["event"] == "batch"]
    assert len(norms) == 2
    assert min(norms) > 1e-3


def test_two_workers_cannot_be_compared_along_their_own_gradients() -> None:
    with pytest.raises(UserError, match="three workers"):
        train(eq.batch.InnerProduct(tested="own"), workers=2, steps=1)
    train(eq.batch.InnerProduct(tested="own", estimator="examples"), workers=2, steps=1)


def test_all_workers_hold_the_same_sizes_at_all_times() -> None:
    for estimator in ESTIMATORS:
        rows = workers_of(eq.batch.NormTest(start=4, eta=0.6, estimator=estimator, shrink=True), 40)
        assert rows[0] == rows[1] == rows[2] == rows[3]
        assert len({tuple(sizes) for sizes in rows[0]}) > 2, "no size was changed"


def test_the_three_estimators_measure_the_same_noise() -> None:
    variances = {}
    for estimator in ESTIMATORS:
        rule = eq.batch.NormTest(start=8, eta=math.inf, estimator=estimator, examples=0)
        rows = workers_of(rule, 24, lambda w: w.batch.noise(), optimizer=lambda p: torch.optim.SGD(p, lr=0.02))
        variances[estimator] = np.mean([e.variance for e in rows[0] if e is not None])
    assert variances["examples"] == pytest.approx(variances["workers"], rel=0.2)
    assert variances["pseudo"] == pytest.approx(variances["workers"], rel=0.2)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_eta_without_bound_is_the_constant_batch_to_the_bit(estimator: str) -> None:
    rule = eq.batch.NormTest(start=8, eta=math.inf, estimator=estimator)
    for changes in ({}, {"sync": eq.sync.AllReduce(), "period": 1}):
        if estimator == "pseudo" and changes:
            continue
        fixed = train(eq.batch.Fixed(8), **changes).result
        adaptive = train(rule, **changes).result
        assert adaptive["params_sha256"] == fixed["params_sha256"]
        assert adaptive["samples"] == fixed["samples"]
        assert adaptive["rounds"] == fixed["rounds"]


def test_a_round_is_one_collective_and_costs_what_is_sent() -> None:
    """The gradient is sent one way, the numbers to every worker, the parameters there and back."""

    def read(worker: Worker) -> tuple[int, int, bool]:
        ledger = worker.comm.ledger
        return ledger.messages, ledger.bytes, worker.clock.due

    def cost(rule: Any, **changes: Any) -> tuple[int, int]:
        rows = workers_of(rule, 4, read, **changes)[0]
        assert rows[2][:2] == (0, 0) or rows[2][2]
        return rows[3][0] - rows[2][0], rows[3][1] - rows[2][1]

    messages, bytes = mean_cost(ELEMENTS, 4, 0, 4)
    one_way = (ELEMENTS - ELEMENTS // 4) * 4
    assert cost(eq.batch.Fixed(8)) == (messages, bytes)
    test = eq.batch.NormTest(start=8)
    assert cost(test) == (messages, bytes + one_way + 3 * 8 * (1 + 5 + 5))  # weight, metadata, statistics
    pseudo = eq.batch.NormTest(start=8, estimator="pseudo")
    assert cost(pseudo) == (messages, bytes + 3 * 8 * (1 + 6 + 5))
    own = eq.batch.NormTest(start=8, estimator="examples", tested="own")
    assert cost(own) == (messages, bytes + 3 * 8 * (1 + 8))
    every = {"sync": eq.sync.AllReduce(), "period": eq.period.Every()}
    assert cost(test, **every) == (messages, bytes + 3 * 8 * (1 + 5 + 5)), "the mean gradient is there already"
    assert cost(eq.batch.NormTest(start=8, every=2)) == (messages, bytes), "no test in this round"


def test_tests_end_at_the_cap() -> None:
    rows = workers_of(eq.batch.NormTest(start=8, most=8), 16, lambda w: w.comm.ledger.bytes)
    assert rows[0][-1] == 4 * mean_cost(ELEMENTS, 4, 0, 4)[1]


def test_every_example_once_per_epoch_while_sizes_change_in_the_middle() -> None:
    rule = eq.batch.NormTest(start=2, eta=0.5, most=13)
    rows = workers_of(
        rule, 30, lambda w: (w.clock.epoch, w.indices.tolist(), w.batch.sizes()[0]), period=eq.period.Every(3)
    )
    first = [(indices, size) for row in rows for epoch, indices, size in row if epoch == 0]
    assert rows[0][-1][0] >= 1, "the first epoch must have ended"
    assert len({size for _, size in first}) >= 3, "and sizes must have changed in it"
    assert sorted(index for indices, _ in first for index in indices) == list(range(toy.EXAMPLES))


def test_samples_are_counted_exactly() -> None:
    rule = eq.batch.NormTest(start=2, eta=0.5, most=13)
    steps = workers_of(
        rule, 25, lambda w: (w.clock.batch, w.clock.samples, w.position.consumed), period=eq.period.Every(3)
    )
    for at in range(25):
        assert (
            sum(rows[at][1] for rows in steps) == steps[0][at][2] == sum(r[t][0] for r in steps for t in range(at + 1))
        )
    result = train(rule, steps=None, epochs=2).result
    assert result["samples"] == 2 * toy.EXAMPLES
    result = train(rule, steps=None, samples=500).result
    assert 500 <= result["samples"] < 500 + 4 * 13


def test_one_worker_keeps_its_size_unless_it_measures_examples(tmp_path: Path) -> None:
    for estimator, grows in (("workers", False), ("pseudo", False), ("examples", True)):
        rule = eq.batch.NormTest(start=8, eta=0.5, most=32, estimator=estimator)
        run = train(rule, workers=1, steps=16, out=tmp_path / estimator)
        assert (run.result["samples"] > 8 * 16) == grows
        assert any(e["event"] == "batch" for e in run.events) == grows
        assert run.result["bytes"] == 0


def test_bytes_and_sizes_are_the_same_on_processes() -> None:
    for rule in (
        eq.batch.NormTest(start=4, eta=0.6, smoothing=0.3),
        eq.batch.NormTest(start=4, eta=0.6, estimator="pseudo", shrink=True),
        eq.batch.Augmented(start=4, theta=0.3, nu=0.9, estimator="examples"),
    ):
        virtual, processes = (train(rule, virtual=v, steps=17).result for v in (True, False))
        for key in ("params_sha256", "samples", "bytes", "rounds", "consensus"):
            assert processes[key] == virtual[key], key


def test_the_same_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_SHARED_MEMORY", "0")
    rule = eq.batch.InnerProduct(start=4, theta=0.3)
    virtual, processes = (train(rule, virtual=v, steps=17).result for v in (True, False))
    for key in ("params_sha256", "samples", "bytes"):
        assert processes[key] == virtual[key], key


@pytest.mark.parametrize("stop", [6, 9])
def test_resume_in_the_middle_of_a_round(stop: int, tmp_path: Path) -> None:
    rules = [
        eq.batch.NormTest(start=4, eta=0.6, estimator="pseudo", smoothing=0.5),
        eq.batch.NormTest(start=4, eta=0.6, every=2, shrink=True),
        eq.batch.NormTest(start=4, eta=0.6, gradient="first"),
        eq.batch.Schedule(plan=[4, 9], at=[100], unit="samples"),
    ]
    schedule = lambda optimizer: LRSchedule(optimizer, "cosine", 0.1, "sqrt")  # noqa: E731
    for at, rule in enumerate(rules):
        undisturbed = train(rule, steps=20, scheduler=schedule).result
        train(rule, steps=20, scheduler=schedule, checkpoint_every=stop, keep=9, out=tmp_path / str(at))
        resumed = train(rule, steps=20, scheduler=schedule, out=tmp_path / str(at), resume=stop).result
        for key in ("params_sha256", "samples", "bytes", "rounds"):
            assert resumed[key] == undisturbed[key], (rule, key)


def test_measured_speeds_on_a_described_cluster() -> None:
    cluster = eq.Cluster.from_dict({"workers": [{"speed": s} for s in (1.0, 1.0, 2.0, 4.0)]})
    rule = eq.batch.NormTest(start=4, eta=math.inf, speeds="measured")
    rows = train(rule, steps=5, cluster=cluster).result["workers"]
    assert [row["samples"] for row in rows] == [4 * 4 + b for b in (2, 2, 4, 8)], (
        "a round of equal steps, one of others"
    )


def test_first_gradients_count_by_the_examples_that_were_in_them() -> None:
    """Rounds across the end of an epoch: its last batch is shorter than the first of the round."""
    pairs: list[tuple[int, float]] = []

    class Spy(eq.batch.NormTest):
        def observe(self, due: bool) -> Piggyback | None:
            clock = self.context.clock
            if clock.step % 4 == 0:
                self.first_batch = clock.batch
            piggyback = super().observe(due)
            if piggyback is not None:
                assert piggyback.metadata()[-1] == self.first_batch
                pairs.append((self.first_batch, clock.batch))
            return piggyback

    workers_of(Spy(start=7, eta=math.inf, gradient="first"), 40)
    assert any(first != last for first, last in pairs), "all batches were alike: the test says nothing"


def test_sizes_that_follow_the_blocks() -> None:
    """As `proportional`, and they grow: all workers end an epoch together, with batches in proportion throughout."""
    rule = eq.batch.NormTest(start=6, most=400, eta=0.5, speeds="blocks")
    rows = workers_of(rule, 12, partition=eq.partition.IID(speeds=[1, 2, 2, 3]), period=eq.period.Every(2))
    assert rows[0][0] == [3, 7, 7, 9]  # rounded up
    assert rows[0][-1][3] > 9
    for one, two, _, three in rows[0]:
        assert abs(three - 3 * one) <= 3
        assert abs(two - 2 * one) <= 2


@pytest.mark.parametrize("speeds", ["blocks", [14, 27, 54, 108]])
def test_sizes_stay_in_proportion_at_the_cap(speeds: Any, tmp_path: Path) -> None:
    """The largest block reaches `most`, the others stay at their part of it: an epoch of all ends together."""
    blocks = [14, 27, 54, 108]
    rule = eq.batch.NormTest(start=16, most=24, eta=0.5, speeds=speeds, scale_lr="linear")
    rows = workers_of(
        rule,
        12,
        lambda worker: (list(worker.batch.sizes()), len(worker.indices), worker.clock.lr),
        partition=eq.partition.IID(speeds=blocks),
        folder=tmp_path,
    )
    for rank, row in enumerate(rows):
        for sizes, taken, lr in row:
            assert sizes == [4, 6, 12, 24]  # rounded up
            assert speeds != "blocks" or taken in (blocks[rank] // 5, -(-blocks[rank] // 5))
            assert lr == pytest.approx(0.2 * 24 * 203 / 108 / 64), "of 4 start = 64 examples, 45 are allowed"
    tests = [event for event in read_events(tmp_path) if event["event"] == "batch"]
    assert not tests, "no test could change a size"


def test_a_worker_that_skips_a_step_weighs_nothing(tmp_path: Path) -> None:
    inputs = toy.INPUTS.clone()
    inputs[7] = math.nan  # in one worker's block only
    run = train(
        eq.batch.NormTest(start=8, eta=0.5, most=32),
        data=(inputs, toy.TARGETS),
        test=(toy.INPUTS, toy.TARGETS),
        period=1,
        steps=14,
        nonfinite="skip",
        out=tmp_path / "run",
    )
    events = run.events
    assert any(e["event"] == "skip" for e in events)
    assert all("reason" not in e for e in events if e["event"] == "batch")
    assert math.isfinite(run.result["models"]["mean"]["loss"])


def test_a_gradient_that_is_not_finite_is_agreed_on_and_changes_nothing(tmp_path: Path) -> None:
    class Cusp(torch.autograd.Function):
        """A finite loss with a gradient that is not."""

        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.mean()

        @staticmethod
        def backward(context: Any, g: torch.Tensor) -> torch.Tensor:
            return torch.full((8, 4), math.inf)

    calls = Counter[str]()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls["all"] += 1
        if calls["all"] == 3:  # one worker, in the first step
            return Cusp.apply(outputs)
        return nn.functional.cross_entropy(outputs, targets)

    rule = eq.batch.NormTest(start=8, eta=0.1)
    sync = eq.sync.DPSGD(combine="before")  # has sent its models before they are lost
    sizes = workers_of(rule, 1, loss=loss, period=eq.period.Every(1), sync=sync, folder=tmp_path)
    events = [event for event in read_events(tmp_path) if event["event"] == "batch"]
    assert "not finite" in events[0]["reason"]
    assert sizes == [[[8] * 4]] * 4


def test_no_gradient_anywhere() -> None:
    flat = lambda outputs, targets: 0.0 * outputs.sum()  # noqa: E731
    run = eq.train(
        toy.model, flat, (toy.INPUTS, toy.TARGETS), workers=4, batch=eq.batch.NormTest(start=8), period=2, steps=6
    )
    assert run.result["samples"] == 4 * 8 * 6


def test_batches_above_the_memory_are_accumulated() -> None:
    rule = eq.batch.NormTest(start=8, eta=0.5, most=40)
    evaluated = {}
    for micro in (None, 7):
        make = lambda: nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))  # noqa: E731
        torch.manual_seed(0)
        model = make()
        run = eq.train(
            model,
            nn.CrossEntropyLoss(),
            (toy.INPUTS, toy.TARGETS),
            workers=4,
            batch=rule,
            period=2,
            steps=12,
            micro=micro,
        )
        evaluated[micro] = run.result["models"]["mean"]["loss"], run.result["samples"]
    assert evaluated[7][1] == evaluated[None][1] > 8 * 4 * 12
    assert evaluated[7][0] == pytest.approx(evaluated[None][0], rel=1e-5)


def test_pseudo_is_refused_where_it_would_be_wrong() -> None:
    rule = eq.batch.NormTest(start=8, estimator="pseudo")
    for optimizer in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p)):
        with pytest.raises(UserError, match="workers"):
            train(rule, optimizer=optimizer)
    with pytest.raises(UserError, match="clip"):
        train(rule, clip=1.0)
    with pytest.raises(UserError, match="periodic-average"):
        train(rule, sync=eq.sync.DPSGD())
    with pytest.raises(UserError, match="every"):
        train(rule, period=eq.period.TotalSteps(4))
    with pytest.raises(UserError, match="first"):
        eq.batch.NormTest(estimator="pseudo", gradient="first")


def test_first_gradients_hold_no_drift(tmp_path: Path) -> None:
    """Workers on |x - z|^2 / 2 with z of variance 1 in each of d dimensions: gradients x - z, tr S = d for every x.

    After local steps the workers' x differ and V is larger by b times their variance: H steps of rate a on b examples
    spread it by a^2 H / b, less what decays.
    """
    d, b, rate, period = 40, 4, 0.2, 16
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(4096, d, generator=generator), torch.zeros(4096)
    variances = {}
    for gradient in ("last", "first"):
        run = eq.train(
            lambda: _Point(d),
            lambda outputs, targets: outputs.mean(),
            data,
            optimizer=lambda p: torch.optim.SGD(p, lr=rate),
            workers=4,
            steps=period * 40,
            batch=eq.batch.NormTest(start=b, eta=math.inf, gradient=gradient),
            period=period,
            out=tmp_path / gradient,
        )
        variances[gradient] = np.mean([event["variance"] for event in run.events if event["event"] == "batch"])
    # Relative standard deviation of one V: sqrt(2 / (3 d)) = 0.13, of 40 of them 0.02. The x of a worker is an average
    # of its batches with weights a (1 - a)^h, whose squares add up to a / (2 - a) = 1/9: V is larger by that.
    kept = rate / (2 - rate) * (1 - (1 - rate) ** (2 * period - 2))
    assert variances["first"] == pytest.approx(d, rel=0.08)
    assert variances["last"] == pytest.approx(d * (1 + kept), rel=0.08)
    assert variances["last"] > variances["first"]


class _Point(nn.Module):
    """Half the squared distance of its inputs from one point."""

    def __init__(self, dimensions: int):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimensions))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return (self.x - z).square().sum(1) / 2


def test_decisions_are_drawn(tmp_path: Path) -> None:
    from equipoise.report.curves import streams
    from equipoise.report.runs import load_run

    train(eq.batch.NormTest(start=4, eta=0.6), out=tmp_path / "run", steps=12)
    drawn = [
        line for stream in streams(load_run(tmp_path / "run")) for line in stream.lines if line.plot == "Batch size"
    ]
    assert any(line.name == "noise scale" for line in drawn)
    assert any(line.name != "noise scale" and len(line.values) > 0 for line in drawn)


# -- the learning rate ------------------------------------------------------------------------------------------------
def test_gains() -> None:
    from equipoise.batch.noise import NoiseEstimate

    estimate = NoiseEstimate(variance=64.0, square=1.0, noise=0.0, parts=1)
    assert gain("none", 4.0, 16, estimate) == 1.0
    assert gain("linear", 4.0, 16, None) == 4.0
    assert gain("sqrt", 4.0, 16, None) == 2.0
    assert gain("adascale", 4.0, 16, estimate) == pytest.approx((4 + 1) / (4 / 4 + 1))
    assert gain("adascale", 4.0, 16, None) == 1.0
    assert gain("adascale", 1.0, 16, estimate) == 1.0
    noise, signal = estimate._replace(square=-1.0), estimate._replace(variance=0.0)
    assert gain("adascale", 4.0, 16, noise) == 4.0, "where noise rules it is linear"
    assert gain("adascale", 4.0, 16, signal) == 1.0, "where there is none nothing is gained"


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
def test_the_rate_follows_samples_and_the_batch(scaling: str) -> None:
    """Whatever the sizes did, the rate is a function of the samples consumed, and of the size."""
    rule = eq.batch.NormTest(start=4, eta=0.5, most=32)
    rates: list[tuple[int, int, float]] = []

    class Recorded(LRSchedule):
        def step(self) -> None:
            assert self.worker is not None
            rates.append((self.worker.position.consumed, self.worker.clock.batch, self.worker.clock.lr))
            super().step()

    run = train(rule, workers=4, steps=None, samples=1200, scheduler=lambda o: Recorded(o, "cosine", 0.25, scaling))
    assert run.result["samples"] >= 1200
    batches = {b for _, b, _ in rates}
    assert max(batches) > 8
    checked = 0
    for consumed, batch, lr in rates[:: toy.WORKERS]:
        total = 4 * batch
        if consumed % toy.EXAMPLES < total or batch not in (4, 8, 16, 32):
            continue  # the end of an epoch: fewer were left
        done = (consumed - total / 2) / 1200
        shape = done / 0.25 if done < 0.25 else 0.5 * (1 + math.cos(math.pi * (done - 0.25) / 0.75))
        expected = 0.2 * shape * {"none": 1.0, "linear": batch / 4, "sqrt": math.sqrt(batch / 4)}[scaling]
        assert lr == pytest.approx(expected, rel=1e-6)
        checked += 1
    assert checked > 5


def test_adascale_needs_a_rule_that_measures() -> None:
    schedule = lambda optimizer: LRSchedule(optimizer, scaling="adascale")  # noqa: E731
    with pytest.raises(UserError, match="norm-test"):
        train(eq.batch.Fixed(8), scheduler=schedule)
    rates = workers_of(
        eq.batch.NormTest(start=4, eta=0.5), 24, lambda w: w.optimizer.param_groups[0]["lr"], scheduler=schedule
    )
    assert rates[0] == rates[1]
    assert max(rates[0]) > 0.2


# -- a user's own loop ------------------------------------------------------------------------------------------------
def test_a_rule_on_a_users_own_loop() -> None:
    def loop(comm: Comm) -> tuple[list[int], int]:
        model = toy.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(toy.INPUTS, toy.TARGETS)
        sampler = eq.Sampler(data, batch=eq.batch.NormTest(start=4, eta=0.5, most=20))
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
        sizes = []
        with eq.attach(model, optimizer, sync=eq.sync.PeriodicAverage(), period=2, sampler=sampler) as together:
            for _ in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    sizes.append(len(x))
        assert sum(sizes) == together.clock.samples
        return sizes, sampler.position.consumed

    rows = eq.spawn(loop, 4, virtual=True)
    assert len({len(sizes) for sizes, _ in rows}) == 1
    assert all(max(sizes) > 8 for sizes, _ in rows)
    assert rows[0][1] == 2 * toy.EXAMPLES == sum(sum(sizes) for sizes, _ in rows)


def test_a_loop_that_accumulates_counts_all_its_batches_drawn_ahead_or_not() -> None:
    def loop(accumulate: int = 1, **options: Any) -> tuple[int, int]:
        model = toy.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(toy.INPUTS, toy.TARGETS)
        sampler = eq.Sampler(data, batch=eq.batch.NormTest(start=4))
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, **options)
        sizes = []
        with eq.attach(model, optimizer, period=2, sampler=sampler, accumulate=accumulate) as together:
            for x, y in loader:
                nn.functional.cross_entropy(model(x), y).backward()
                sizes.append(len(x))
                if len(sizes) % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        return together.clock.samples, sum(sizes[: len(sizes) // 2 * 2])

    for counted, taken in [*eq.spawn(lambda comm: loop(2), 2, virtual=True), loop(2, num_workers=1)]:
        assert counted == taken > 0
    for options in ({}, {"num_workers": 1}):
        with pytest.raises(UserError, match="accumulate=2"):
            loop(**options)
