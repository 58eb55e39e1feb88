"""Training with unequal shares: equal to SGD on the union, in the time that the model says."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.partition.export import subsets

N = 1500
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 6, generator=GENERATOR, dtype=torch.float64)
Y = (X @ torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)).argmax(1)
SPEEDS = [1.0, 2.0, 4.0, 8.0]


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(6, 3).double()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


def by_hand(blocks: list[np.ndarray], sizes: list[int], steps: int) -> nn.Module:
    """Mini-batch SGD on the union of what the workers take, in the order in which they take it."""
    one = model()
    optimizer = sgd(one.parameters())
    for step in range(steps):
        taken = np.concatenate([b[step * s : (step + 1) * s] for b, s in zip(blocks, sizes, strict=True)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(one(X[taken]), Y[taken]).backward()
        optimizer.step()
    return one


def difference(a: nn.Module, b: nn.Module) -> float:
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("sync", [eq.sync.AllReduce(), eq.sync.PeriodicAverage()])
@pytest.mark.parametrize("speeds", [[1.0] * 4, SPEEDS])
def test_full_averaging_is_minibatch_sgd_on_the_union(speeds: list[float], sync: eq.sync.Sync) -> None:
    """Also for unequal shares: gradients are weighted by batches, models by shares, and both are the same ratio."""
    partition = eq.partition.Submodular(speeds=speeds, objective="herding")
    blocks = partition.blocks(eq.partition.DatasetView(N, Y.numpy(), (X, Y)), 4, seed=0)
    # Counts are off by a fraction of an example, so that sizes are taken from blocks: whole steps, then stop.
    sizes = eq.batch_sizes([1, 2, 4, 8] if speeds == SPEEDS else [1] * 4, 15)
    run = eq.train(
        model,
        nn.CrossEntropyLoss(),
        (X, Y),
        workers=4,
        partition=partition,
        order=eq.order.Sequential(),
        batch=eq.batch.Fixed(sizes),
        optimizer=sgd,
        sync=sync,
        steps=12,
    )
    # Sums of a few hundred numbers of order one in float64; shares of blocks are those of batches to 1 in 1500.
    exact = sync == eq.sync.AllReduce() or speeds != SPEEDS
    assert difference(run.model, by_hand(blocks, sizes, 12)) < (1e-12 if exact else 1e-4)


def test_uniform_weights_are_another_method() -> None:
    """The switch to the paper's averaging gives a slow worker's examples up to r_max / r_i times more weight."""
    partition = eq.partition.Stratified(speeds=SPEEDS)
    runs = [
        eq.train(
            model,
            nn.CrossEntropyLoss(),
            (X, Y),
            workers=4,
            partition=partition,
            batch=eq.batch.Proportional(15),
            optimizer=sgd,
            sync=eq.sync.PeriodicAverage(weights=weights),
            steps=12,
        ).model
        for weights in ("size", "uniform")
    ]
    assert difference(*runs) > 1e-3


def test_epoch_time_is_that_of_the_model() -> None:
    """Proportional blocks and batches: no worker waits, and an epoch is mean(r) / min(r) = 3.75 times shorter."""
    cluster = eq.Cluster([100.0 * speed for speed in SPEEDS])

    def seconds(**options: Any) -> tuple[float, int]:
        loss = nn.CrossEntropyLoss()
        result = eq.train(model, loss, (X, Y), workers=4, epochs=1, cluster=cluster, optimizer=sgd, **options).result
        return result["simulated_seconds"], result["steps"]

    even = seconds(batch=15)
    fast = seconds(partition=eq.partition.IID(speeds=SPEEDS), batch=eq.batch.Proportional(15))
    assert even == (pytest.approx(3.75), 25)
    assert fast == (pytest.approx(1.0), 25)
    # Proportional blocks and one size for all: the fast worker needs 54 steps, and batches follow the blocks.
    followed = seconds(partition=eq.partition.IID(speeds=SPEEDS), batch=15)
    assert followed[1] == 54
    assert followed[0] < 1.1


@pytest.mark.parametrize(
    ("batch", "speeds"),
    [(eq.batch.NormTest(start=32, speeds="blocks"), [73, 147, 293, 587]), (20, [41, 60, 60, 60])],
)
def test_no_batch_of_one_where_a_block_has_two_for_every_step(batch: Any, speeds: list[float]) -> None:
    """Sizes that do not divide the blocks: 73 examples in batches of 9 would end in one, and so would 41 of 20."""
    examples = int(sum(speeds))
    x = torch.zeros(examples, 1)
    partition = eq.partition.IID(speeds=speeds)
    drawn: dict[int, list[int]] = {}

    def work(comm: Any) -> None:
        sampler = eq.Sampler((x, x), partition=partition, batch=batch)
        drawn[comm.rank] = [len(b) for b in sampler]

    eq.spawn(work, 4, virtual=True)
    for sizes in drawn.values():
        assert sum(sizes) >= 2 * len(sizes), "the example says nothing"
        assert min(sizes) >= 2
        assert max(sizes) - min(sizes) <= 1
    assert sum(map(sum, drawn.values())) == examples


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(X.shape[1], 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


ALONE = "worker 0 had one example in step 37, and BatchNorm needs two: take larger batches"
ENDS_ALONE: dict[str, Any] = {"partition": eq.partition.IID(speeds=[73, 587]), "batch": 16}
PART = X[:660], Y[:660]


@pytest.mark.parametrize("virtual", [True, False])
def test_a_batch_of_one_that_batch_norm_refuses_is_told(virtual: bool) -> None:
    """73 examples in the 37 steps that the other block takes: 36 batches of two, and one."""
    with pytest.raises(UserError, match=ALONE):
        eq.train(normed, nn.CrossEntropyLoss(), PART, workers=2, epochs=1, virtual=virtual, **ENDS_ALONE)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_one_in_a_loop_of_ones_own_is_told(num_workers: int) -> None:
    """Also where the loader is ahead, and drew it before the step that needs it."""

    def loop(comm: Any) -> None:
        net = normed()
        optimizer = sgd(net.parameters())
        sampler = eq.Sampler(PART, **ENDS_ALONE)
        loader = DataLoader(TensorDataset(*PART), batch_sampler=sampler, num_workers=num_workers)
        with eq.attach(net, optimizer, sampler=sampler):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()

    with pytest.raises(UserError, match=ALONE):
        eq.spawn(loop, 2, virtual=True)


def test_other_errors_on_one_example_stay_what_they_are() -> None:
    def refusing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(outputs) == 1:
            raise ValueError("no loss of one example")
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(ValueError, match="no loss of one example") as caught:
        eq.train(model, refusing, PART, workers=2, epochs=1, virtual=True, **ENDS_ALONE)
    assert not isinstance(caught.value, UserError)


class Pooled(nn.Module):
    """Gives its norm one row, however many examples there are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(X.shape[1]).double(), nn.Linear(X.shape[1], 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x.mean(0, keepdim=True))).expand(len(x), 3)


def test_one_row_of_many_examples_is_not_told_as_one_example() -> None:
    def loop(comm: Any) -> None:
        net = Pooled()
        sampler = eq.Sampler(PART, batch=16)
        with eq.attach(net, sgd(net.parameters()), sampler=sampler):
            for rows in sampler:
                nn.functional.cross_entropy(net(X[rows]), Y[rows]).backward()

    for run in (
        lambda: eq.train(Pooled, nn.CrossEntropyLoss(), PART, workers=2, steps=1, virtual=True, batch=16),
        lambda: eq.spawn(loop, 2, virtual=True),
    ):
        with pytest.raises(Exception, match="more than 1 value per channel") as caught:
            run()
        assert "had one example" not in str(caught.value)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", [12, eq.batch.NormTest(start=12, eta=math.inf), eq.batch.NoiseScale(start=12)])
def test_batches_of_one_size_follow_unequal_blocks(batch: Any, drop_last: bool) -> None:
    """No worker takes its examples one by one: BatchNorm has a batch in every step, and all examples are used."""
    sizes: list[int] = []

    class Watched(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                sizes.append(len(x))
            return super().forward(x)

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(X.shape[1], 4), Watched(4), nn.Linear(4, 3)).double()

    result = eq.train(
        normed,
        nn.CrossEntropyLoss(),
        (X, Y),
        workers=4,
        partition=eq.partition.IID(speeds=[1, 2, 4, 5]),
        batch=batch,
        epochs=1,
        drop_last=drop_last,
        optimizer=sgd,
    ).result
    assert min(sizes) >= 2
    if isinstance(batch, int):
        assert N - (12 if drop_last else 1) < result["samples"] <= N
        assert max(sizes) <= 12


@pytest.mark.parametrize(
    ("batch", "speeds", "drop_last", "words"),
    [
        ([4, 8, 16], None, False, "worker 2 has taken its 64 examples after 4 of 16 steps.*partition.speeds = 4,8,16"),
        ([4, 8, 16], None, True, "drop_last ends the epoch there"),
        (eq.batch.NormTest(start=8, speeds=[1, 1, 4]), None, False, "single examples"),
        ([4, 8, 16], [1, 2, 4], False, ""),
        (8, [1, 2, 4], False, ""),
        ([7, 8, 9], None, False, ""),
    ],
)
def test_sizes_that_do_not_follow_the_blocks_are_told(
    batch: Any, speeds: list[float] | None, drop_last: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Listed by the user: they are taken as they are, and end in batches that no BatchNorm can use."""
    data = torch.randn(192, 2), torch.randn(192, 1)
    eq.train(
        nn.Linear(2, 1),
        nn.MSELoss(),
        data,
        workers=3,
        steps=1,
        batch=batch,
        partition=eq.partition.IID(speeds=speeds),
        drop_last=drop_last,
    )
    said = [record.getMessage() for record in caplog.records if "has taken its" in record.getMessage()]
    assert len(said) == bool(words)
    assert not words or re.search(words, said[0])


def test_sizes_that_leave_the_blocks_later_are_told_once(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    """Equal blocks of 64 and sizes that become 4, 7 and 14, then twice that: worker 2 is done after 5 of 16 steps."""
    torch.manual_seed(0)
    run = eq.train(
        nn.Linear(2, 1),
        nn.MSELoss(),
        (torch.randn(192, 2), torch.randn(192, 1)),
        workers=3,
        steps=6,
        batch=eq.batch.NormTest(start=8, speeds="measured", eta=1e-3),
        cluster=eq.Cluster([1.0, 2.0, 4.0]),
        out=tmp_path / "run",
    )
    said = [record.getMessage() for record in caplog.records if "has taken its" in record.getMessage()]
    assert len({tuple(event["new"]) for event in run.events if event["event"] == "batch"}) > 1
    assert len(said) == 1
    assert "worker 2 has taken its 64 examples" in said[0]


def test_proportional_batches_end_all_blocks_together() -> None:
    partition = eq.partition.Submodular(speeds=[1, 3], objective="feature")
    taken: dict[int, list[int]] = {}

    def work(comm: Any) -> None:
        sampler = eq.Sampler((X, Y), partition=partition, batch=eq.batch.Proportional(20))
        taken[comm.rank] = [len(batch) for batch in sampler]

    eq.spawn(work, 2, virtual=True)
    assert len(taken[0]) == len(taken[1]) == 38
    assert set(taken[0]) == {9, 10}, "even batches, and none short at the end"
    assert set(taken[1]) == {29, 30}
    assert sum(taken[0]) + sum(taken[1]) == N


def test_plan_as_subsets() -> None:
    plan = eq.partition.Submodular(speeds=SPEEDS).divide(X.numpy(), Y.numpy())
    parts = subsets(TensorDataset(X, Y), plan.blocks)
    assert [len(part) for part in parts] == [len(block) for block in plan.blocks]
    assert torch.equal(parts[1][7][0], X[plan.blocks[1][7]])
