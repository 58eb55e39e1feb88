"""Workers that come and go in `eq.train` and `eq.attach`: the run goes on, loses little and forgets no example."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.comm.membership import Elasticity
from equipoise.comm.virtual_membership import Change
from equipoise.core.copied import copied
from equipoise.core.errors import TooFew, UserError
from equipoise.launch.elastic import ElasticLauncher
from equipoise.loop.agreement import Agreement
from equipoise.loop.job import Length
from equipoise.loop.snapshot import Snapshots
from equipoise.loop.train import prepare
from equipoise.observe.events import read_events
from equipoise.testing import toy

from .churn import STEPS, arrange, make_job, members, run

OFTEN = Elasticity(1, 5, deadline=20.0, snapshot_every=2)
LOSSES = {1: 6, 0: 11}  # by worker: the step in which it dies

FAMILIES = [
    pytest.param(eq.sync.AllReduce(), {}, id="all-reduce"),
    pytest.param(eq.sync.DiLoCo(momentum=0.0), {"wire": eq.wire.TopK(keep=0.25)}, id="diloco-top-k"),
    pytest.param(eq.sync.DPSGD(), {"wire": eq.wire.Int8()}, id="d-psgd-int8"),
    pytest.param(eq.sync.LSGD(), {"order": eq.order.CDGraB()}, id="lsgd-cd-grab"),
]


# -- processes -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sync", "choices"), FAMILIES)
def test_killed_processes_give_the_bits_of_lost_virtual_workers(
    sync: Any, choices: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [Change(worker, "lose", step=step) for worker, step in LOSSES.items()]
    expected = run(make_job(sync, OFTEN, changes, **choices)).result
    arrange(monkeypatch, {worker: (step, signal.SIGKILL) for worker, step in LOSSES.items()})
    result = run(make_job(sync, OFTEN, **choices), virtual=False).result
    assert members(result) == members(expected) == [(4, [0, 2, 3]), (10, [2, 3])]
    assert [row["lost"][0]["text"] for row in result["membership"]] == [
        "worker 1 was killed by SIGKILL at step 6",
        "worker 0 was killed by SIGKILL at step 11",
    ]
    for key in ("params_sha256", "steps", "samples", "rounds", "messages", "bytes"):
        assert result[key] == expected[key], key


def test_a_stopped_process_is_left_out_and_a_killed_one_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Worker 2 hangs for good. Worker 1 is started again, and is let in where all agree."""
    arrange(monkeypatch, {2: (5, signal.SIGSTOP), 1: (9, signal.SIGKILL)}, awaited=3)
    start = ElasticLauncher._start

    def late(launcher: ElasticLauncher, worker: int, size: int | None) -> None:
        while size is None and int(launcher.store.get("generation")) < 2:
            time.sleep(0.05)  # it might return before the others have noticed that it was gone
        start(launcher, worker, size)

    monkeypatch.setattr(ElasticLauncher, "_start", late)
    elastic = Elasticity(1, 4, deadline=1.5, respawn=1, snapshot_every=2)
    job = make_job(eq.sync.PeriodicAverage(), elastic, length=Length(epochs=60.0))
    result = run(job, virtual=False, folder=tmp_path / "run").result
    (stopped, killed, returned) = result["membership"]
    assert (stopped["members"], stopped["step"], stopped["reason"]) == ([0, 1, 3], 4, "loss")
    assert stopped["lost"][0]["why"].startswith("gives no sign of life")
    assert (killed["members"], killed["step"]) == ([0, 3], 8)
    assert (returned["members"], returned["joined"], returned["reason"]) == ([0, 1, 3], [1], "join")
    assert returned["dropped"] == {"steps": 0, "samples": 0, "bytes": 0}
    assert returned["given_bytes"] > 4 * 160
    assert result["samples"] == 60 * toy.EXAMPLES
    events = read_events(tmp_path / "run")
    seen = [e for e in events if e["event"] == "membership" and e["generation"] == 3]
    assert sorted(e["worker"] for e in seen) == [0, 1, 3]
    steps = [e["step"] for e in events if e["event"] == "step" and e["worker"] == 0]
    assert steps == sorted(set(steps)), "what was taken back is in the history"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["membership"] == result["membership"]


def test_a_worker_that_is_asked_to_leave_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange(monkeypatch, {1: (6, signal.SIGTERM)})
    result = run(make_job(eq.sync.PeriodicAverage(), OFTEN), virtual=False).result
    (left,) = result["membership"]
    assert (left["step"], left["members"], left["dropped"]["steps"]) == (6, [0, 2, 3], 0)
    assert left["lost"][0]["why"] == "has left"


# -- too few -------------------------------------------------------------------------------------------------------
def test_too_few_workers_keep_the_last_agreed_round_and_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [Change(0, "lose", step=3), Change(2, "lose", step=7)]
    job = make_job(eq.sync.PeriodicAverage(), Elasticity(3, 4), changes, length=Length(epochs=2.0))
    job.quiet = False
    with pytest.raises(TooFew) as caught:
        run(job, folder=tmp_path / "run")
    words = str(caught.value)
    assert words.startswith(
        "2 workers are left and the run needs 3: worker 2 (rank 1) was killed at step 7; step 6, the"
    )
    assert words.endswith(f"is saved in {tmp_path / 'run'}")
    assert "worker 0 was killed at step 3; 3 workers go on from step 2" in capsys.readouterr().err
    resumed = make_job(eq.sync.PeriodicAverage(), Elasticity(1, 4), length=Length(epochs=2.0))
    resumed.folder = tmp_path / "run"
    prepare(resumed, True)
    result = run(resumed, workers=2).result
    assert result["samples"] == 2 * toy.EXAMPLES
    assert [row["members"] for row in result["membership"]] == [[1, 2, 3], [1, 3]]
    assert [e["event"] for e in read_events(tmp_path / "run")].count("resume") == 2


# -- a user's own loop -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sync", "choices"), FAMILIES[1:])
def test_an_own_loop_gives_the_bits_of_train(sync: Any, choices: dict[str, Any]) -> None:
    changes = [
        Change(1, "lose", step=6),
        Change(4, "join", step=9),
        Change(0, "lose", step=12),
        Change(0, "join", step=15),
    ]
    expected = run(make_job(sync, OFTEN, changes, **choices)).result
    result = toy.attach(sync, steps=STEPS, elastic=OFTEN, planned=changes, **choices)
    assert members(result) == members(expected)
    assert [roster for _, roster in members(result)] == [[0, 2, 3], [0, 2, 3, 4], [2, 3, 4], [0, 2, 3, 4]]
    for key in ("params_sha256", "samples", "messages", "bytes", "rounds"):
        assert result[key] == expected[key], key


def test_an_own_loop_on_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planned = [Change(2, "lose", step=6)]
    expected = toy.attach(eq.sync.PeriodicAverage(), elastic=OFTEN, planned=planned)
    arrange(monkeypatch, {2: (6, signal.SIGKILL)})
    result = toy.attach(eq.sync.PeriodicAverage(), elastic=OFTEN, virtual=False, log=tmp_path / "log")
    assert members(result) == members(expected) == [(4, [0, 1, 3])]
    assert result["params_sha256"] == expected["params_sha256"]
    assert {e["worker"] for e in read_events(tmp_path / "log") if e["event"] == "membership"} == {0, 1, 3}


def test_a_loss_in_an_evaluation_and_between_epochs(tmp_path: Path) -> None:
    """Worker 3 dies in the evaluation at the end of the first epoch, worker 2 where the third begins."""

    def loop(comm: Any) -> tuple[int, list[int]]:
        data = torch.utils.data.TensorDataset(toy.INPUTS, toy.TARGETS)
        net = toy.model()
        sgd, sampler = toy.optimizer(net.parameters()), eq.Sampler(data, batch=8)
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
        seen: list[int] = []
        with eq.attach(net, sgd, period=2, sampler=sampler, log=tmp_path) as together:
            for epoch in sampler.epochs(3):
                if epoch == 2 and comm.worker == 2:
                    together.comm.after_compute = None
                    comm.membership._members.lose(together.comm._worker, "was killed")
                for x, y in loader:
                    sgd.zero_grad()
                    torch.nn.functional.cross_entropy(net(x), y).backward()
                    sgd.step()
                seen.append(epoch)
                if epoch == 0 and comm.worker == 3:
                    comm.membership._members.lose(together.comm._worker, "was killed")
                metrics = together.evaluate((toy.INPUTS, toy.TARGETS), torch.nn.functional.cross_entropy)
                assert math.isfinite(metrics["mean"]["loss"])
        return together.clock.consumed, seen

    results = eq.spawn(loop, 4, virtual=True, elastic=Elasticity(1, 4))
    assert results == [(3 * toy.EXAMPLES, [0, 1, 2])] * 2
    history = json.loads((tmp_path / "result.json").read_text())["membership"]
    assert [row["members"] for row in history] == [[0, 1, 2], [0, 1]]
    assert [row["dropped"]["steps"] for row in history] == [0, 0]


# -- what is carried -------------------------------------------------------------------------------------------------
def test_a_newcomer_leaves_the_mean_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gossip: the workers differ. With unequal shares the mean is the weighted one."""
    vectors: dict[int, dict[int, torch.Tensor]] = {}
    original = Agreement.begin

    def begin(agreement: Any, parts: Any) -> None:
        generation = agreement.membership.roster.generation
        vectors.setdefault(generation, {})[parts.step.comm.worker] = parts.step.flat.gather().clone()
        shares.setdefault(generation, parts.step.sync.mean_shares())
        original(agreement, parts)

    shares: dict[int, list[float]] = {}
    monkeypatch.setattr(Agreement, "begin", begin)
    partition = eq.partition.Dirichlet(alpha=0.5)
    run(make_job(eq.sync.DPSGD(), OFTEN, [Change(4, "join", step=7)], partition=partition))
    after, pi = vectors[1], shares[1]
    assert len(pi) == 5
    assert not torch.equal(after[0], after[1])
    old = sum(pi[w] * after[w].double() for w in range(4)) / sum(pi[:4])
    assert torch.allclose(after[4].double(), old, atol=1e-7)


def test_residuals_of_those_who_stay_are_kept_and_replicas_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Error feedback is private: what a survivor has not sent yet is neither lost nor sent twice."""
    kept: dict[tuple[int, int], Any] = {}
    original = Snapshots.take

    def take(snapshots: Any, label: Any, parts: Any) -> None:
        channel = parts.step.wire.channels["average"]
        kept[(label[0], parts.step.clock.step), parts.step.comm.worker] = (
            channel.residual if channel.residual is None else channel.residual.clone()
        )
        original(snapshots, label, parts)

    monkeypatch.setattr(Snapshots, "take", take)
    wire = {"wire": eq.wire.TopK(keep=0.25, residual="feedback")}
    run(make_job(eq.sync.PeriodicAverage(), OFTEN, [Change(1, "lose", step=6), Change(4, "join", step=9)], **wire))
    for worker in (0, 2, 3):
        assert torch.equal(kept[(1, 4), worker], kept[(0, 4), worker])
        assert kept[(1, 4), worker].any()
        assert torch.equal(kept[(2, 10), worker], kept[(1, 10), worker])
    assert kept[(2, 10), 4] is None


def test_snapshots_share_no_memory_with_the_model_and_use_theirs_again() -> None:
    live = {"x": torch.arange(4.0), "rows": [torch.ones(2), 3], "n": 1}
    first = copied(live, {})
    live["x"] += 1
    assert first["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
    memory = first["x"].data_ptr()
    second = copied(live, first)
    assert second["x"].data_ptr() == memory
    assert torch.equal(second["x"], live["x"])
    assert second["x"] is not live["x"]
    assert copied({"x": torch.ones(5)}, second)["x"].tolist() == [1.0] * 5


def test_adaptive_batches_keep_their_size_per_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[Any, list[int]] = {}
    original = Snapshots.take

    def take(snapshots: Any, label: Any, parts: Any) -> None:
        sizes[label[0], parts.step.clock.step] = parts.step.batch.sizes()
        original(snapshots, label, parts)

    monkeypatch.setattr(Snapshots, "take", take)
    run(make_job(eq.batch.NormTest(start=2, eta=0.5, most=6), OFTEN, [Change(1, "lose", step=11)]))
    assert sizes[0, 10] == [6] * 4, "the rule has something to keep"
    assert sizes[1, 10] == [6] * 3


# -- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (
            {"period": eq.period.TotalSteps(2), "sync": eq.sync.PeriodicAverage()},
            "its own block.*use partition queue, or a period such as every",
        ),
        ({"batch": [8, 8, 8, 8]}, "batch.size lists a number for each worker"),
        ({"partition": eq.partition.IID(speeds=[1.0, 1.0, 2.0, 2.0])}, "partition.speeds lists a number for each"),
        ({"sync": eq.sync.DPSGD(topology=eq.topology.Hypercube())}, "elastic = 2:4, but with 3 workers"),
        ({"sync": eq.sync.LSGD(groups=3), "period": 2}, "elastic = 2:4, but with 2 workers: LSGD: 3 groups"),
        ({"elastic": "5:8"}, "begins with 4 workers"),
    ],
)
def test_what_needs_a_fixed_number_of_workers_is_refused(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        toy.train(eq.sync.AllReduce(), **{"elastic": "2:4", **choices})


def test_a_partition_file_is_refused(tmp_path: Path) -> None:
    blocks = [part.tolist() for part in np.array_split(np.arange(toy.EXAMPLES), 4)]
    (tmp_path / "parts.json").write_text(json.dumps({"blocks": blocks}))
    with pytest.raises(UserError, match="made for one number of workers"):
        toy.train(eq.partition.FromFile(str(tmp_path / "parts.json")), elastic=2)


def test_a_loader_that_draws_ahead_and_a_scaler_are_refused() -> None:
    with pytest.raises(UserError, match=r"use DataLoader\(num_workers=0\)"):
        toy.attach(eq.sync.AllReduce(), elastic=OFTEN, num_workers=1, workers=2)
    with pytest.raises(UserError, match="GradScaler"):
        toy.attach(eq.sync.AllReduce(), elastic=OFTEN, scaler=torch.amp.GradScaler("cpu"), workers=2)


def test_a_loop_without_workers_is_refused() -> None:
    net = toy.model()
    with (
        pytest.raises(UserError, match="elastic needs several workers"),
        eq.attach(net, toy.optimizer(net.parameters()), elastic=1),
    ):
        pass
