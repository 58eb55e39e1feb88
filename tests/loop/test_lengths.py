"""When a run ends: steps, epochs, samples, budgets, whichever comes first."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.launch.start import spawn
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.simulate.cluster import PAYLOAD, Cluster, Link

from ..comm.workers import both
from .problem import AS_IT_LIES, DATA, EXAMPLES, plain, sgd, train

# Two workers with 26 examples each and batches of 4: seven steps an epoch, the last with 2 examples each.
STEPS = 7


@both
@pytest.mark.parametrize(
    ("length", "steps", "samples"),
    [
        ({"steps": 3}, 3, 24),
        ({"steps": 9}, 9, 68),
        ({"epochs": 1}, 7, 52),
        ({"epochs": 3}, 21, 156),
        ({"epochs": 0.5}, 4, 32),  # 26 of 52 are reached with the fourth step
        ({"epochs": 1.25}, 9, 68),  # 13 more of 52 with the second
        ({"samples": 40}, 5, 40),
        ({"samples": 41}, 6, 48),
        ({"samples": 53}, 8, 60),
        ({}, 7, 52),
        ({"steps": 5, "epochs": 3, "samples": 100}, 5, 40),
        ({"steps": 50, "epochs": 1, "samples": 100}, 7, 52),
        ({"steps": 50, "epochs": 3, "samples": 20}, 3, 24),
    ],
)
def test_a_run_is_as_long_as_it_says(length: dict[str, Any], steps: int, samples: int, virtual: bool) -> None:
    result = train(workers=2, batch=4, virtual=virtual, **length).result
    assert (result["steps"], result["samples"]) == (steps, samples)
    assert result["epochs"] == samples / EXAMPLES
    assert [row["steps"] for row in result["workers"]] == [steps, steps]
    assert sum(row["samples"] for row in result["workers"]) == samples
    assert result["rounds"] == steps, "all-reduce has a round at every step"


@pytest.mark.parametrize("epochs", [0.1, 0.7, 1.1, 2.3])
def test_parts_of_an_epoch_are_not_overstepped_by_rounding(epochs: float) -> None:
    """With batches that hit the mark exactly, 1.1 epochs of 10 steps are 11 steps, though 1.1 is no binary fraction."""
    data = torch.randn(20, 6), torch.zeros(20, dtype=torch.int64)
    result = eq.train(plain(), cross_entropy, data, optimizer=sgd, batch=2, epochs=epochs).result
    assert result["steps"] == round(10 * epochs)


def test_drop_last_shortens_the_epoch() -> None:
    result = train(workers=2, batch=4, epochs=2, drop_last=True).result
    assert (result["steps"], result["samples"]) == (12, 96)


def test_a_budget_of_simulated_seconds_ends_the_run() -> None:
    """By hand: the slow worker's 4 / 10 s, then a ring of two messages of half the vector and its weight, 93 % of the
    line.
    """
    cluster = Cluster([10.0, 40.0], Link(bandwidth=8e3, latency=0.01))
    elements = sum(p.numel() for p in plain().parameters()) + 1
    step = 0.4 + 2 * (0.01 + 4 * elements / 2 / (PAYLOAD * 1e3))
    for budget, steps in ((2.5 * step, 3), (0.01, 1), (f"{4 * step - 1e-6} s", 4)):
        result = train(workers=2, batch=4, epochs=100, budget=budget, cluster=cluster).result
        assert result["steps"] == steps
        assert result["simulated_seconds"] == pytest.approx(steps * step, rel=1e-9)
        assert [row["simulated_seconds"] for row in result["workers"]] == pytest.approx([steps * step] * 2, rel=1e-9)


def test_without_a_cluster_no_simulated_seconds_are_told() -> None:
    assert train(steps=1, workers=2).result["simulated_seconds"] is None


@both
def test_a_budget_of_real_seconds_ends_the_run(virtual: bool) -> None:
    def slow(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return cross_entropy(outputs, targets)

    started = time.monotonic()
    result = eq.train(
        plain(), slow, DATA, optimizer=sgd, workers=2, batch=4, epochs=1000, budget=0.3, virtual=virtual, log_every=2
    ).result
    assert result["seconds"] >= 0.3
    assert 2 <= result["steps"] <= 60
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("length", [{"epochs": 0}, {"steps": -3}, {"samples": 0}, {"budget": 0.0}])
def test_a_length_of_nothing_is_refused(length: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(length))} = "):
        Length(**length)


def test_no_length_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="say when the run ends"):
        Length()


# -- workers that run out of examples -----------------------------------------------------------------------------
@both
def test_an_idle_worker_keeps_up_with_all_reduce(virtual: bool, tmp_path: Any) -> None:
    """Worker 0 has two examples, worker 1 ten: from the third step on the gradient is worker 1's alone."""
    path = tmp_path / "blocks.json"
    path.write_text('{"blocks": [[0, 1], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]}')
    data = DATA[0][:12], DATA[1][:12]
    run = eq.train(
        plain(), cross_entropy, data, optimizer=sgd, workers=2, batch=eq.batch.Fixed([1, 2]), epochs=1,
        partition=eq.partition.FromFile(str(path)), order=eq.order.Sequential(), virtual=virtual,
    )  # fmt: skip
    assert run.result["consensus"] == 0.0
    assert [row["samples"] for row in run.result["workers"]] == [2, 10]
    assert [row["steps"] for row in run.result["workers"]] == [5, 5]
    model = plain()
    optimizer = sgd(model.parameters())
    for batch in ([0, 2, 3], [1, 4, 5], [6, 7], [8, 9], [10, 11]):
        optimizer.zero_grad()
        cross_entropy(model(data[0][batch]), data[1][batch]).backward()
        optimizer.step()
    for mine, theirs in zip(run.model.parameters(), model.parameters(), strict=True):
        assert (mine - theirs).abs().max() < 50 * torch.finfo(torch.float32).eps


def test_an_idle_worker_stands_still_where_workers_train_alone(tmp_path: Any) -> None:
    """No momentum and no weight decay either: it takes no step."""
    path = tmp_path / "blocks.json"
    path.write_text('{"blocks": [[0], [1, 2, 3, 4, 5, 6]]}')
    from equipoise.data.source import Source

    job = Job(
        model=plain, loss=cross_entropy, train=Source((DATA[0][:7], DATA[1][:7])), length=Length(epochs=1),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1), batch=eq.batch.Fixed(1),
        partition=eq.partition.FromFile(str(path)), order=eq.order.Sequential(), sync=eq.sync.NoSync(),
    )  # fmt: skip

    def work(comm: Any) -> list[Any]:
        worker = Worker(job, comm)
        found = []
        for _ in range(6):
            worker.step()
            found.append((worker.clock.batch, worker.flat.x.clone()))
        return found

    idle, busy = spawn(work, 2, virtual=True)
    assert [batch for batch, _ in idle] == [1, 0, 0, 0, 0, 0]
    assert [batch for batch, _ in busy] == [1] * 6
    assert all(torch.equal(x, idle[0][1]) for _, x in idle)
    assert not any(torch.equal(busy[i][1], busy[i + 1][1]) for i in range(5))


def test_the_period_counts_steps_of_the_optimizer() -> None:
    """Not micro-batches: 7 steps of an epoch with a round every 3 are 2 rounds, whatever is accumulated."""
    for micro in (None, 1):
        result = train(workers=2, batch=4, epochs=1, period=3, micro=micro, **AS_IT_LIES).result
        assert result["rounds"] == STEPS // 3
        assert result["messages"] == 2 * 2 * (STEPS // 3)
