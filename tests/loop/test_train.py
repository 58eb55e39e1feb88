"""`eq.train` against loops written by hand: bit for bit where the arithmetic is the same, to rounding where it is
not.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.core.vector import Flat

from ..comm.workers import both
from .problem import (
    AS_IT_LIES,
    DATA,
    EXAMPLES,
    INPUTS,
    TARGETS,
    adam,
    adamw,
    by_hand,
    momentum,
    plain,
    sgd,
    train,
    vector,
    with_dropout,
    with_norm,
)

# Training steps here stay below 1 in every parameter and gradient: errors of single precision add up to a few hundred
# of these.
ROUNDING = 300 * torch.finfo(torch.float32).eps


def lying(batch: int, epochs: int = 1) -> list[torch.Tensor]:
    return [
        torch.arange(start, min(start + batch, EXAMPLES)) for _ in range(epochs) for start in range(0, EXAMPLES, batch)
    ]


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


# -- one worker ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("optimizer", [sgd, momentum, adam, adamw])
@pytest.mark.parametrize("model", [plain, with_dropout, with_norm])
def test_one_worker_is_the_loop_of_every_tutorial(model: Any, optimizer: Any) -> None:
    """Bit for bit: parameters, buffers, dropout masks; the last batch is a smaller one."""
    run = train(model(), optimizer, epochs=3, batch=8, **AS_IT_LIES)
    assert same_bits(run.model, by_hand(lying(8, 3), model, optimizer))
    assert run.result["steps"] == 21
    assert run.result["bytes"] == run.result["messages"] == run.result["rounds"] == 0


def test_with_a_scheduler_and_clipping() -> None:
    def scheduler(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    run = train(with_dropout(), momentum, epochs=2, batch=8, scheduler=scheduler, clip=0.05, **AS_IT_LIES)
    expected = by_hand(lying(8, 2), with_dropout, momentum, scheduler, clip=0.05)
    assert same_bits(run.model, expected)
    assert not same_bits(expected, by_hand(lying(8, 2), with_dropout, momentum, scheduler)), (
        "clipping does something here"
    )
    assert not same_bits(expected, by_hand(lying(8, 2), with_dropout, momentum, clip=0.05)), "and so does the schedule"


@both
def test_a_rate_that_follows_the_loss_is_changed_by_evaluations_and_resumed(virtual: bool, tmp_path: Path) -> None:
    """ReduceLROnPlateau sees the loss of the mean model after every evaluation, on every worker, also at the end."""
    seen: list[Any] = []

    def scheduler(optimizer: Any) -> Any:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=10.0)
        seen.append(plateau)
        return plateau

    def run(epochs: int, **how: Any) -> Any:
        how |= {"workers": 2, "batch": 8, "virtual": virtual, "deterministic": True, "evaluate_every": 1.0}
        return train(plain(), sgd, epochs=epochs, scheduler=scheduler, **how).result["params_sha256"]

    whole = run(4)
    if virtual:
        assert [one.num_bad_epochs + one.last_epoch for one in seen] == [4, 4]
        assert {one.get_last_lr()[0] for one in seen} == {0.1 * 0.5**3}, "the first one sets the mark"
    assert whole != train(plain(), sgd, epochs=4, workers=2, batch=8).result["params_sha256"]
    run(2, out=tmp_path / "run")
    assert run(4, out=tmp_path / "run", resume=True) == whole


def test_micro_batches_accumulate_to_the_same_gradient() -> None:
    """Also where the batch is not a multiple: parts of 3, 3 and 2 weigh 3/8, 3/8 and 2/8."""
    run = train(plain(), momentum, epochs=3, batch=8, micro=3, **AS_IT_LIES)
    expected = by_hand(lying(8, 3), plain, momentum)
    assert (vector(run.model) - vector(expected)).abs().max() < ROUNDING
    assert not same_bits(run.model, expected), "else micro would have done nothing"
    whole = train(plain(), momentum, epochs=3, batch=8, micro=8, **AS_IT_LIES)
    assert same_bits(whole.model, expected), "a batch that fits is not cut"


def test_autocast_is_applied_to_the_forward_pass() -> None:
    seen: list[torch.dtype] = []

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            if self.training:
                seen.append(out.dtype)
            return out

    run = eq.train(Looks(6, 3), cross_entropy, DATA, steps=3, batch=8, autocast=torch.bfloat16)
    assert set(seen) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in run.model.parameters())


def test_the_users_model_and_generators_are_left_untouched() -> None:
    model = with_norm()
    kept, state = copy.deepcopy(model), torch.get_rng_state()
    run = train(model, epochs=1, batch=8)
    assert same_bits(model, kept)
    assert not any(p.grad is not None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not same_bits(run.model, kept)


class Items(Dataset):
    """Map-style data without tensors to gather from."""

    targets = TARGETS.tolist()

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return INPUTS[i], int(TARGETS[i])


def test_every_kind_of_data_gives_the_same() -> None:
    expected = train(plain(), epochs=1, batch=8).result["params_sha256"]
    for data in (torch.utils.data.TensorDataset(*DATA), [t.numpy() for t in DATA], Items()):
        assert (
            eq.train(plain(), cross_entropy, data, optimizer=sgd, epochs=1, batch=8).result["params_sha256"] == expected
        )


# -- all-reduce ---------------------------------------------------------------------------------------------------
def union(batches: list[int], epochs: int = 1) -> list[torch.Tensor]:
    """The union of all workers' batches at each step, from the same blocks and sizes."""
    blocks = np.array_split(np.arange(EXAMPLES), len(batches))
    steps = max(-(-len(b) // n) for b, n in zip(blocks, batches, strict=True))
    found = []
    for _ in range(epochs):
        at = [0] * len(batches)
        for step in range(steps):
            parts = []
            for w, size in enumerate(batches):
                left = len(blocks[w]) - at[w]
                count = min(size, max(left - (steps - 1 - step), min(left, 1)))
                parts.append(blocks[w][at[w] : at[w] + count])
                at[w] += count
            found.append(torch.from_numpy(np.concatenate(parts)))
    return found


@both
@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("batches", [[4, 4], [8, 16], [3, 5, 1, 7]])
def test_all_reduce_is_one_loop_over_the_union_of_batches(batches: list[int], optimizer: Any, virtual: bool) -> None:
    size = eq.batch.Fixed(batches)
    run = train(plain(), optimizer, workers=len(batches), epochs=2, batch=size, virtual=virtual, **AS_IT_LIES)
    expected = by_hand(union(batches, 2), plain, optimizer)
    assert (vector(run.model) - vector(expected)).abs().max() < ROUNDING
    assert run.result["consensus"] == 0.0, "all workers hold the same bits"
    assert run.result["samples"] == 2 * EXAMPLES


def test_all_reduce_with_uniform_weights_is_the_mean_of_gradients() -> None:
    """By hand for one step with batches of 2 and 6."""
    sync, size = eq.sync.AllReduce(weights="uniform"), eq.batch.Fixed([2, 6])
    run = train(plain(), sgd, workers=2, steps=1, batch=size, sync=sync, **AS_IT_LIES)
    model = plain()
    x = vector(model)
    for part in (torch.arange(0, 2), torch.arange(26, 32)):
        model.zero_grad()
        cross_entropy(model(INPUTS[part]), TARGETS[part]).backward()
        x -= 0.2 / 2 * torch.cat([p.grad.double().reshape(-1) for p in model.parameters()])
    assert (vector(run.model) - x).abs().max() < ROUNDING


@both
def test_clipping_comes_after_the_gradients_are_combined(virtual: bool) -> None:
    run = train(plain(), sgd, workers=2, epochs=1, batch=4, clip=0.03, virtual=virtual, **AS_IT_LIES)
    assert (vector(run.model) - vector(by_hand(union([4, 4]), plain, sgd, clip=0.03))).abs().max() < ROUNDING


@both
def test_every_bit_of_gradient_counts_once_in_several_dtypes(virtual: bool) -> None:
    """float16, bfloat16 and float32 in one model: all-reduce equals the union batch to the rounding of each of them."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.first = nn.Linear(6, 8).bfloat16()
            self.scale = nn.Parameter(torch.ones(8, dtype=torch.float16))
            self.last = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.tanh(self.first(x.bfloat16())).float() * self.scale.float())

    run = train(Mixed(), sgd, workers=2, steps=6, batch=4, virtual=virtual, deterministic=True, **AS_IT_LIES)
    expected = by_hand(union([4, 4])[:6], Mixed, sgd)
    assert run.result["consensus"] == 0.0
    for (name, p), q in zip(run.model.named_parameters(), expected.parameters(), strict=True):
        assert p.dtype == q.dtype
        # Six steps, each rounding the parameter and its gradient to the precision of its own, at values below 1;
        # what comes through the bfloat16 layer carries that layer's error.
        assert (p.double() - q.double()).abs().max() < 24 * torch.finfo(torch.bfloat16).eps * 0.2, name
    assert not torch.equal(run.model.last.weight, Mixed().last.weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_all_reduce_in_one_other_dtype(dtype: torch.dtype) -> None:
    class Cast(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(dtype)).to(torch.promote_types(dtype, torch.float32))

    def make() -> nn.Module:
        return Cast(*plain()).to(dtype)

    size = eq.batch.Fixed([4, 6])
    run = train(make(), sgd, workers=2, steps=5, batch=size, **AS_IT_LIES)
    assert next(run.model.parameters()).dtype == dtype
    expected = by_hand(union([4, 6])[:5], make, sgd)
    assert (vector(run.model) - vector(expected)).abs().max() < 20 * torch.finfo(dtype).eps


# -- periodic average ---------------------------------------------------------------------------------------------
@both
def test_a_period_of_one_with_plain_sgd_is_all_reduce(virtual: bool) -> None:
    """x - lr mean(g) = mean(x - lr g): equal batches and blocks, one step between rounds."""
    data = INPUTS[:48], TARGETS[:48]
    how = {"optimizer": sgd, "workers": 4, "epochs": 2, "batch": 4, "virtual": virtual}
    averaged = eq.train(plain(), cross_entropy, data, sync=eq.sync.PeriodicAverage(), **how)
    reduced = eq.train(plain(), cross_entropy, data, **how)
    assert (vector(averaged.model) - vector(reduced.model)).abs().max() < ROUNDING


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_periodic_average_by_hand(weights: str) -> None:
    """Blocks of 18, 17 and 17 examples; three local steps, one average."""
    sync = eq.sync.PeriodicAverage(weights=weights)
    run = train(plain(), momentum, workers=3, steps=3, batch=4, period=3, sync=sync, **AS_IT_LIES)
    blocks = np.array_split(np.arange(EXAMPLES), 3)
    locals_ = [by_hand([torch.from_numpy(b[4 * s : 4 * s + 4]) for s in range(3)], plain, momentum) for b in blocks]
    share = [len(b) / EXAMPLES if weights == "size" else 1 / 3 for b in blocks]
    expected = sum(w * vector(m) for w, m in zip(share, locals_, strict=True))
    assert (vector(run.model) - expected).abs().max() < ROUNDING
    assert run.result["consensus"] < ROUNDING
    assert run.result["rounds"] == 1


def test_between_rounds_workers_are_on_their_own() -> None:
    alone = train(plain(), sgd, workers=3, steps=4, batch=4, sync=eq.sync.NoSync(), **AS_IT_LIES)
    rare = train(plain(), sgd, workers=3, steps=4, batch=4, period=5, **AS_IT_LIES)
    assert rare.result["params_sha256"] == alone.result["params_sha256"]
    assert rare.result["rounds"] == rare.result["bytes"] == 0
    assert alone.result["consensus"] > 1e-3


# -- virtual workers and processes --------------------------------------------------------------------------------
@pytest.mark.parametrize("sync", [eq.sync.AllReduce(), eq.sync.PeriodicAverage(), eq.sync.NoSync()])
def test_processes_give_the_bits_of_virtual_workers(sync: Any) -> None:
    period = 3 if isinstance(sync, eq.sync.PeriodicAverage) else 1
    how = {"workers": 3, "epochs": 2, "batch": 6, "sync": sync, "period": period, "buffers": "average", "seed": 7}
    one = train(with_norm(), adam, virtual=True, **how)
    other = train(with_norm(), adam, virtual=False, deterministic=True, **how)
    assert same_bits(one.model, other.model)
    assert (one.result["consensus"] == 0.0) != isinstance(sync, eq.sync.NoSync), "three equal models are at no distance"
    for key in ("params_sha256", "models", "consensus", "bytes", "messages", "rounds", "samples", "steps"):
        assert one.result[key] == other.result[key], key


def test_virtual_runs_repeat_and_seeds_differ() -> None:
    def sha(seed: int) -> str:
        return train(with_dropout(), workers=3, epochs=1, batch=4, seed=seed).result["params_sha256"]

    assert sha(0) == sha(0)
    assert sha(0) != sha(1)


def test_a_model_that_is_made_at_random_is_worker_0s_everywhere() -> None:
    """Frozen parameters and buffers too, and the returned model has them."""

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        model[0].requires_grad_(False)
        model[1].running_mean.normal_()
        return model

    for virtual in (True, False):
        run = train(make, workers=3, steps=4, batch=6, virtual=virtual, test=DATA)
        model = run.model.eval()
        with torch.no_grad():
            loss = cross_entropy(model(INPUTS), TARGETS).item()
        assert loss == pytest.approx(run.result["models"]["mean"]["loss"], rel=1e-5)


# -- what is refused ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": EXAMPLES + 1}, f"{EXAMPLES + 1} workers but only {EXAMPLES} examples"),
        ({"workers": 0}, "workers = 0"),
        ({"epochs": 0}, "epochs = 0"),
        ({"steps": -1}, "steps = -1"),
        ({"samples": 0}, "samples = 0"),
        ({"budget": "0 s"}, "budget"),
        ({"batch": 0}, "size must be at least 1"),
        ({"batch": eq.batch.Fixed([1, 2])}, "lists 2 sizes for 1 workers"),
        ({"period": 0}, "steps must be at least 1"),
        ({"period": 4, "sync": eq.sync.AllReduce()}, "AllReduce communicates at every step.*periodic-average"),
        ({"buffers": "keep"}, "buffers = 'keep'"),
        ({"nonfinite": "ignore"}, "nonfinite = 'ignore'"),
        ({"micro": 0}, "micro = 0"),
        ({"clip": -1.0}, "clip = -1.0"),
        ({"keep": 0}, "keep = 0"),
        ({"checkpoint_every": 0}, "checkpoint_every = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"batch": 30, "drop_last": True, "workers": 2}, "drop_last leaves no batch"),
        ({"workers": 2.0}, "workers = 2.0: pass a whole number"),
        ({"sync": "detag"}, r"sync = 'detag': pass a method of this axis, such as eq.sync.DeTAG\(\)"),
        ({"sync": "detga"}, "unknown sync 'detga': did you mean 'detag'"),
        ({"sync": eq.order.Reshuffle()}, r"such as eq.sync.AllReduce\(\)"),
        ({"order": eq.order.CDGraB}, r"such as eq.order.CDGraB\(\)"),
        ({"batch": "32"}, "a number of examples, or a list"),
        ({"period": 2.0}, "or a number of steps"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        train(**options)


def test_numbers_of_numpy_and_tuples_are_numbers_and_lists() -> None:
    speeds = eq.partition.Stratified(speeds=np.array([2, 3]))
    for batch in ((2, 3), np.array([2, 3]), [np.int64(2), 3]):
        run = train(workers=np.int64(2), batch=batch, period=np.int64(2), seed=np.int64(1), steps=2, partition=speeds)
        assert run.result["samples"] == 10
    assert eq.sync.LGRAWA(pull=np.float32(0.5)) == eq.sync.LGRAWA(pull=0.5)


@both
def test_workers_that_build_different_models_are_told_apart(virtual: bool) -> None:
    from equipoise.core.errors import WorkerError
    from equipoise.launch.start import spawn
    from equipoise.loop.make_equal import make_equal

    def work(comm: Any) -> None:
        model = nn.Linear(3, 2 + (comm.rank == 1))
        make_equal(comm, model, Flat(model))

    with pytest.raises(WorkerError, match=r"worker 1 built another model than worker 0.*weight.*\(3, 3\)") as caught:
        spawn(work, 3, virtual=virtual, timeout=30.0)
    assert caught.value.rank == 1


def test_loader_processes_are_refused_with_what_has_them() -> None:
    with pytest.raises(UserError, match=r"num_workers = 2: .* use eq.attach and eq.Sampler"):
        eq.train(torch.nn.Linear(2, 2), cross_entropy, (torch.zeros(4, 2), torch.zeros(4).long()), num_workers=2)
