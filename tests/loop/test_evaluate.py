"""Evaluation of local, mean and centre: the right numbers, and no trace in the training state."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import equipoise as eq
from equipoise.core.random import rng_state
from equipoise.data.source import Source
from equipoise.launch.start import spawn
from equipoise.loop import evaluate as module
from equipoise.loop.evaluate import consensus, evaluate
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

from ..comm.workers import both
from .problem import DATA, INPUTS, TARGETS, adam, plain, vector, with_dropout, with_norm


@dataclass
class Centred(eq.sync.NoSync):
    """Workers alone, with a centre variable of ones."""

    def centre(self) -> torch.Tensor:
        return torch.ones_like(self.context.flat.x)


class Noisy(nn.Module):
    """Draws random numbers of every kind in each forward pass, also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = with_norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1e-3 * (torch.randn(3) + random.random() + np.random.rand())


def job(model: Any = with_norm, **options: Any) -> Job:
    how = {
        "train": Source(DATA),
        "length": Length(epochs=1),
        "optimizer": adam,
        "sync": Centred(),
        "batch": eq.batch.Fixed(6),
    }
    return Job(model=model, loss=cross_entropy, **{**how, **options})


def trained(comm: Any, job: Job, steps: int = 2) -> Worker:
    worker = Worker(job, comm)
    worker.model.train()
    for _ in range(steps):
        worker.step()
    return worker


def everything(worker: Worker) -> list[Any]:
    """All bits that decide the future of a worker."""
    torch_rng, python_rng, numpy_rng, _ = rng_state()
    tensors = [
        *worker.model.state_dict().values(),
        worker.flat.gather(),
        torch_rng,
        torch.from_numpy(numpy_rng[1].astype("int64")),
    ]
    tensors += [t for s in worker.optimizer.state_dict()["state"].values() for t in s.values()]
    tensors += [p.grad for p in worker.model.parameters()]
    norms = [(m.training, m.momentum) for m in worker.model.modules() if isinstance(m, nn.BatchNorm1d)]
    modes = [m.training for m in worker.model.modules()]
    numbers = [
        python_rng,
        numpy_rng[2:],
        worker.comm.ledger.state_dict(),
        worker.comm.now,
        worker.clock.state_dict(),
        norms,
        modes,
    ]
    place = worker.position.state_dict()
    tensors += [place.pop(name) for name, value in list(place.items()) if isinstance(value, torch.Tensor)]
    return [[None if t is None else t.clone() for t in tensors], numbers, place]


def unchanged(one: list[Any], other: list[Any]) -> bool:
    same = (a is b is None or torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    return all(same) and one[1:] == other[1:]


# -- no trace -----------------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize("buffers", ["local", "average", "recompute"])
def test_evaluation_leaves_every_bit_as_it_was(buffers: str, virtual: bool) -> None:
    chosen = job(Noisy, buffers=buffers)

    def work(comm: Any) -> tuple[bool, bool, Any]:
        worker = trained(comm, chosen)
        before = everything(worker)
        losses = evaluate(worker.stepper, worker.task, ("local", "mean", "centre"))
        consensus(worker)
        first = unchanged(before, everything(worker))
        worker.step()
        return first, unchanged(before, everything(worker)), sorted(losses)

    assert spawn(work, 3, virtual=virtual, timeout=30.0) == [(True, False, ["centre", "local", "mean"])] * 3


def test_a_run_with_evaluations_ends_with_the_bits_of_one_without() -> None:
    def sha(every: int) -> str:
        how = {
            "workers": 2,
            "batch": 4,
            "epochs": 3,
            "evaluate_every": every,
            "sync": eq.sync.PeriodicAverage(),
            "period": 4,
        }
        return eq.train(with_dropout(), cross_entropy, DATA, optimizer=adam, **how).result["params_sha256"]

    assert sha(1) == sha(100)


def test_an_error_in_evaluation_leaves_the_model_in_place() -> None:
    def work(comm: Any) -> bool:
        worker = trained(comm, job())
        worker.job.test = Source((INPUTS[:, :2], TARGETS))
        before = everything(worker)
        with pytest.raises(RuntimeError, match="shape"):
            evaluate(worker.stepper, worker.task, ("mean",))
        return unchanged(before, everything(worker))

    assert spawn(work, 1, virtual=True) == [True]


# -- the right numbers --------------------------------------------------------------------------------------------
def loss_and_accuracy(model: nn.Module) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        outputs = model(INPUTS)
    return cross_entropy(outputs.double(), TARGETS).item(), (outputs.argmax(1) == TARGETS).double().mean().item()


@both
@pytest.mark.parametrize("size", [1, 2, 3])
def test_local_mean_and_centre_by_hand(size: int, virtual: bool) -> None:
    chosen = job(with_dropout)

    def work(comm: Any) -> tuple[Any, Any, float]:
        worker = trained(comm, chosen)
        losses = evaluate(worker.stepper, worker.task, ("local", "mean", "centre"))
        return losses, {k: v.clone() for k, v in worker.model.state_dict().items()}, consensus(worker)

    ran = spawn(work, size, virtual=virtual, timeout=30.0)
    models = []
    for _, state, _ in ran:
        model = with_dropout()
        model.load_state_dict(state)
        models.append(model)
    vectors = [vector(m) for m in models]
    middle = sum(vectors) / size
    mean, ones = with_dropout(), with_dropout()
    nn.utils.vector_to_parameters(middle.float(), mean.parameters())
    nn.utils.vector_to_parameters(torch.ones(len(middle)), ones.parameters())
    expected = {"mean": loss_and_accuracy(mean), "centre": loss_and_accuracy(ones)}
    own = [loss_and_accuracy(m) for m in models]
    expected["local"] = sum(loss for loss, _ in own) / size, sum(right for _, right in own) / size
    if size == 1:
        del expected["centre"]  # alone a worker needs no sync, and has no centre
    spread = (sum((v - middle).square().sum() for v in vectors) / size).sqrt().item()
    for losses, _, disagreement in ran:
        assert set(losses) == set(expected)
        for name, (loss, accuracy) in expected.items():
            assert losses[name]["loss"] == pytest.approx(loss, rel=1e-5)
            assert losses[name]["accuracy"] == pytest.approx(accuracy, abs=1e-12)
        assert disagreement == pytest.approx(spread, rel=1e-5, abs=1e-12)


def test_other_test_data_and_more_workers_than_examples() -> None:
    test = INPUTS[:2] * 3.0, TARGETS[:2]
    run = eq.train(plain(), cross_entropy, DATA, workers=4, steps=2, batch=4, test=test)
    run.model.eval()
    with torch.no_grad():
        expected = cross_entropy(run.model(test[0]), test[1]).item()
    assert run.result["models"]["mean"]["loss"] == pytest.approx(expected, rel=1e-5)


def test_losses_are_weighted_by_examples_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """52 examples in chunks of 20 are 20, 20 and 12: the mean over examples, not over chunks."""
    monkeypatch.setattr(module, "_CHUNK", 20)
    run = eq.train(plain(), cross_entropy, DATA, steps=2, batch=4)
    loss, accuracy = loss_and_accuracy(run.model)
    assert run.result["models"]["mean"]["loss"] == pytest.approx(loss, rel=1e-5)
    assert run.result["models"]["mean"]["accuracy"] == pytest.approx(accuracy, abs=1e-12)


def test_regression_has_a_loss_and_no_accuracy() -> None:
    data = INPUTS, INPUTS[:, :1] * 2.0
    run = eq.train(nn.Linear(6, 1), mse_loss, data, steps=2, batch=4, workers=2)
    assert set(run.result["models"]["mean"]) == {"loss"}


def test_a_model_of_sequences_counts_every_answer() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x)

    tokens = torch.randint(0, 4, (10, 5), generator=torch.Generator().manual_seed(0))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs.flatten(0, 1), targets.flatten())

    run = eq.train(Tokens(), loss, (tokens, (tokens + 1) % 4), steps=2, batch=5)
    with torch.no_grad():
        right = (run.model(tokens).argmax(-1) == (tokens + 1) % 4).double().mean().item()
    assert run.result["models"]["mean"]["accuracy"] == pytest.approx(right, abs=1e-12)


# -- buffers ------------------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize("buffers", ["local", "average", "recompute"])
def test_the_returned_model_is_the_one_that_was_evaluated(buffers: str, virtual: bool) -> None:
    """With its BatchNorm statistics: a model that is handed over with fresh ones is worth nothing."""
    how = {"workers": 3, "batch": 6, "epochs": 3, "period": 2, "virtual": virtual, "buffers": buffers}
    run = eq.train(with_norm(), cross_entropy, DATA, optimizer=adam, **how)
    loss, accuracy = loss_and_accuracy(run.model)
    assert run.result["models"]["mean"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert run.result["models"]["mean"]["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert not torch.equal(run.model[1].running_mean, torch.zeros(8))


def test_average_makes_buffers_equal_at_rounds_and_local_does_not() -> None:
    def work(comm: Any, policy: str) -> list[Any]:
        chosen = job(buffers=policy, sync=eq.sync.PeriodicAverage(), period=eq.period.Every(2))
        worker, losses = Worker(chosen, comm), []
        worker.model.train()
        for _ in range(3):
            worker.step()
            losses.append((worker.model[1].running_mean.clone(), worker.model[1].num_batches_tracked.item()))
        return losses

    for policy in ("local", "average"):
        rows = spawn(lambda comm: work(comm, policy), 3, virtual=True)  # noqa: B023
        equal = [all(torch.equal(rows[0][s][0], row[s][0]) for row in rows) for s in range(3)]
        assert equal == [False, policy == "average", False]
        assert [count for _, count in rows[2]] == [1, 2, 3], "counts are integers and stay with their worker"


@both
@pytest.mark.parametrize("sizes", [(8, 24), (16, 16)])
@pytest.mark.parametrize("buffers", ["local", "average", "recompute"])
def test_statistics_of_unequal_blocks_are_those_of_the_data(
    buffers: str, sizes: tuple[int, int], virtual: bool, tmp_path: Path
) -> None:
    """Blocks of two classes, with means 4 and 0: the mean by examples. Recomputed, also the variance between them."""
    ends = np.cumsum([0, *sizes]).tolist()
    path = tmp_path / "blocks.json"
    path.write_text(json.dumps({"blocks": [list(range(a, b)) for a, b in itertools.pairwise(ends)]}))
    noise = 0.01 * torch.randn(32, 1, generator=torch.Generator().manual_seed(0))
    x = noise + 4.0 * (torch.arange(32)[:, None] < sizes[0])
    run = eq.train(
        lambda: nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1)),
        nn.MSELoss(),
        (x, torch.zeros(32, 1)),
        optimizer=adam,
        workers=2,
        virtual=virtual,
        partition=eq.partition.FromFile(path=str(path)),
        batch=16,
        sync=eq.sync.PeriodicAverage(weights="uniform"),
        epochs=2,
        buffers=buffers,
    )
    norm = run.model[0]
    assert norm.running_mean.item() == pytest.approx(x.mean().item(), abs=0.02)
    if buffers == "recompute":
        assert norm.running_mean.item() == pytest.approx(x.mean().item(), rel=1e-5)
        assert norm.running_var.item() == pytest.approx(x.var(correction=0).item(), rel=1e-2)


class Constant(nn.Module):
    """A buffer that nothing changes, such as a table of positions."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, dtype=torch.bfloat16)
        self.register_buffer("table", torch.linspace(0.1, 3.0, 50).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.bfloat16()).float()


def test_half_precision_buffers_that_are_the_same_everywhere_stay_so() -> None:
    """By parts of 3, 5 and 7 of 15, whose products bfloat16 rounds."""
    how = {"partition": eq.partition.IID(speeds=[3, 5, 7]), "batch": 4, "epochs": 20, "buffers": "average"}
    run = eq.train(Constant, mse_loss, (torch.randn(45, 1), torch.zeros(45, 1)), workers=3, **how)
    assert torch.equal(run.model.table, Constant().table)


def test_statistics_of_a_sorted_block_contain_the_variance_between_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of two classes with means 4 and 0, in parts of 20."""
    monkeypatch.setattr(module, "_CHUNK", 20)
    noise = 0.01 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    x = noise + 4.0 * (torch.arange(200)[:, None] < 100)
    how = {"partition": eq.partition.Contiguous(), "batch": 20, "epochs": 1, "buffers": "recompute"}
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    norm = eq.train(model, mse_loss, (x, torch.zeros(200, 1)), optimizer=adam, **how).model[0]
    assert norm.running_mean.item() == pytest.approx(x.mean().item(), rel=1e-5)
    assert norm.running_var.item() == pytest.approx(x.var().item(), rel=0.05)


@pytest.mark.parametrize(("examples", "chunk"), [(52, 512), (52, 13), (41, 20)])
def test_recompute_is_the_statistics_of_the_training_data(
    examples: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker, linear layer before the norm: mean and (unbiased) variance of its outputs, averaged over equal parts.

    41 examples in parts of at most 20 must not leave a single one, which has no variance.
    """
    monkeypatch.setattr(module, "_CHUNK", chunk)
    data = INPUTS[:examples], TARGETS[:examples]
    how = {"steps": 4, "batch": 8, "buffers": "recompute", "partition": eq.partition.Contiguous()}
    run = eq.train(with_norm(), cross_entropy, data, optimizer=adam, **how)
    with torch.no_grad():
        shuffled = data[0][np.random.default_rng(0).permutation(examples)]
        parts = [run.model[0](part) for part in torch.tensor_split(shuffled, -(-examples // chunk))]
    mean = sum(p.mean(0) for p in parts) / len(parts)
    variance = sum(p.var(0) for p in parts) / len(parts)
    assert torch.allclose(run.model[1].running_mean, mean, rtol=1e-5, atol=1e-6)
    assert torch.allclose(run.model[1].running_var, variance, rtol=1e-5, atol=1e-6)
