"""NaN and infinity: stop with a name, or skip without a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.core.errors import NonFinite
from equipoise.launch.start import spawn
from equipoise.loop.worker import Worker

from ..comm.workers import both
from .problem import AS_IT_LIES, EXAMPLES, INPUTS, TARGETS, momentum, plain, sgd, vector, with_norm

# Two workers, batches of 4, as the data lies: worker 1 takes 26..29, 30..33, 34..37, ...; example 31 is in its second
# batch.
BAD, STEP = 31, 2


def poisoned(value: float = float("nan")) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = INPUTS.clone()
    inputs[BAD, 2] = value
    return inputs, TARGETS


def train(data: Any, model: Any = plain, optimizer: Any = sgd, **options: Any) -> eq.Run:
    how = {"workers": 2, "batch": 4, "steps": 4, **AS_IT_LIES, **options}
    return eq.train(model(), cross_entropy, data, optimizer=optimizer, **how)


# -- stop ---------------------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize("sync", [eq.sync.AllReduce(), eq.sync.PeriodicAverage(), eq.sync.NoSync()])
def test_stop_names_the_worker_the_step_and_the_examples(sync: Any, virtual: bool) -> None:
    words = rf"^worker 1, step {STEP}: the loss is nan on examples \[30, 31, 32, 33\]; .*--nonfinite skip"
    with pytest.raises(NonFinite, match=words) as caught:
        train(poisoned(), sync=sync, virtual=virtual)
    assert (caught.value.rank, caught.value.step) == (1, STEP)
    assert caught.value.code == 3


def test_stop_with_one_worker_and_many_examples() -> None:
    with pytest.raises(NonFinite, match=r"worker 0, step 2: .* \[20, 21, 22, 23, 24, 25, 26, 27\]\.\.\.;"):
        train(poisoned(), workers=1, batch=20)


class Root(nn.Module):
    """A finite loss whose gradient is not: the square root of zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(torch.nan_to_num(x))
        if x.isnan().any() and self.training:
            out = out + torch.sqrt((out * 0.0).sum())
        return out


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_is_not_finite_is_neither_saved_nor_returned(workers: int, tmp_path: Any) -> None:
    """The gradient alone was NaN, in the last step before the checkpoint: the one before survives."""
    step, what = {1: (8, "parameters are"), 2: (STEP, "gradient is")}[workers]  # in which example 31 comes
    words = rf"step {step}: the {what} not finite.*; the last good checkpoint is .*run/checkpoints/step-{step - 1}$"
    with pytest.raises(NonFinite, match=words):
        train(poisoned(), Root, workers=workers, steps=step, out=tmp_path / "run", checkpoint_every=step - 1)
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"step-{step - 1}"]
    with pytest.raises(NonFinite):
        train(poisoned(), Root, workers=workers, steps=step)


# -- skip ---------------------------------------------------------------------------------------------------------
def union_without(step: int | None) -> list[list[int]]:
    """The union of both workers' batches, without worker 1's in the given step."""
    states = []
    for s in range(4):
        mine, theirs = list(range(4 * s, 4 * s + 4)), list(range(26 + 4 * s, 30 + 4 * s))
        states.append(mine if s + 1 == step else mine + theirs)
    return states


@both
@pytest.mark.parametrize(("model", "value"), [(plain, float("nan")), (plain, float("inf")), (Root, float("nan"))])
def test_skip_weighs_the_bad_batch_with_zero(model: Any, value: float, virtual: bool) -> None:
    """Of that step the healthy worker's gradient is what is left; nothing of the bad example is in the result."""
    run = train(poisoned(value), model, momentum, nonfinite="skip", virtual=virtual)
    expected = model()
    optimizer = momentum(expected.parameters())
    for batch in union_without(STEP):
        optimizer.zero_grad()
        cross_entropy(expected(INPUTS[batch]), TARGETS[batch]).backward()
        optimizer.step()
    assert (vector(run.model) - vector(expected)).abs().max() < 100 * torch.finfo(torch.float32).eps
    assert run.result["consensus"] == 0.0
    assert run.result["samples"] == 32, "it was consumed all the same"


def test_skip_changes_nothing_where_all_is_well() -> None:
    clean = (INPUTS, TARGETS)
    for model in (plain, with_norm):
        one, other = train(clean, model, momentum), train(clean, model, momentum, nonfinite="skip")
        assert one.result["params_sha256"] == other.result["params_sha256"]


def test_a_worker_that_trains_alone_takes_no_step_on_a_bad_batch() -> None:
    from equipoise.data.source import Source
    from equipoise.loop.job import Job, Length

    job = Job(
        model=with_norm, loss=cross_entropy, train=Source(poisoned()), length=Length(steps=4), optimizer=momentum,
        batch=eq.batch.Fixed(4), sync=eq.sync.NoSync(), nonfinite="skip", **AS_IT_LIES,
    )  # fmt: skip

    def work(comm: Any) -> list[Any]:
        worker, states = Worker(job, comm), []
        worker.model.train()
        for _ in range(4):
            worker.step()
            state = {k: v.clone() for k, v in worker.model.state_dict().items()}
            states.append((worker.clock.batch, worker.clock.samples, state))
        return states

    for rank, states in enumerate(spawn(work, 2, virtual=True)):
        assert [b for b, _, _ in states] == ([4, 4, 4, 4] if rank == 0 else [4, 0, 4, 4])
        assert [s for _, s, _ in states] == [4, 8, 12, 16]
        for s in range(1, 4):
            before, after = states[s - 1][2], states[s][2]
            still = all(torch.equal(before[k], after[k]) for k in before)
            assert still == (rank == 1 and s == STEP - 1), (
                "parameters and BatchNorm's statistics, together or not at all"
            )
        assert all(v.isfinite().all() for _, _, state in states for v in state.values())


@both
def test_statistics_of_batch_norm_are_not_poisoned(virtual: bool) -> None:
    run = train(poisoned(), with_norm, nonfinite="skip", buffers="average", virtual=virtual)
    assert all(t.isfinite().all() for t in run.model.state_dict().values())
    assert run.result["models"]["mean"]["loss"] != run.result["models"]["mean"]["loss"], "the data itself is NaN there"
    clean = eq.train(
        with_norm(),
        cross_entropy,
        poisoned(),
        workers=2,
        batch=4,
        steps=4,
        nonfinite="skip",
        virtual=virtual,
        test=(INPUTS, TARGETS),
    )
    assert clean.result["models"]["mean"]["loss"] < 3.0


@both
def test_when_every_batch_is_bad_nothing_moves(virtual: bool) -> None:
    data = torch.full((EXAMPLES, 6), float("nan")), TARGETS
    run = train(data, plain, momentum, nonfinite="skip", virtual=virtual, test=(INPUTS, TARGETS))
    assert torch.equal(vector(run.model), vector(plain())), "weight decay neither"
    alone = train(data, plain, momentum, nonfinite="skip", workers=1, test=(INPUTS, TARGETS))
    assert torch.equal(vector(alone.model), vector(plain()))


def test_a_skip_is_told(tmp_path: Any) -> None:
    run = train(poisoned(), nonfinite="skip", out=tmp_path / "run")
    skips = [e for e in run.events if e["event"] == "skip"]
    assert [(e["worker"], e["step"], e["reason"]) for e in skips] == [(1, STEP - 1, "the loss is nan")]


def test_large_half_precision_gradients_are_finite() -> None:
    """Their sum overflows in float16, they do not."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(200_000, dtype=torch.float16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight.sum(dtype=torch.float32) * torch.ones(len(x), 1)

    data = torch.zeros(4, 1), torch.zeros(4, 1)
    run = eq.train(
        Wide(),
        lambda out, _: out.mean(),
        data,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        steps=1,
        nonfinite="skip",
    )
    assert run.model.weight.eq(-0.5).all()
