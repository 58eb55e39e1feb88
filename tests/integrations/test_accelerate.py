"""Loops with Accelerate, on 2 and 4 processes. Each launch serves several tests."""

from __future__ import annotations

import collections
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate", reason="needs accelerate: pip install 'equipoise[accelerate]'")

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from safetensors.torch import load_file

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.integrations.accelerate import attach, prepare
from equipoise.observe.events import read_events

from ..launch.test_torchrun import under_torchrun
from .quiet import quiet

pytestmark = pytest.mark.filterwarnings("ignore")  # those of other packages
EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"
EXAMPLES = 22
_generator = torch.Generator().manual_seed(0)
INPUTS, TARGETS = (
    torch.randn(EXAMPLES, 4, generator=_generator),
    torch.randint(0, 3, (EXAMPLES,), generator=_generator),
)
DATA = TensorDataset(torch.arange(EXAMPLES), INPUTS, TARGETS)
UNEQUAL = {"partition": eq.partition.IID(speeds=[3.0, 2.0]), "batch": [3, 2]}


def parts(dropout: float = 0.2) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def vector(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def loop(
    folder: Path, choices: dict[str, Any], *, data: dict[str, Any], stop: int = 0, resume: bool = False
) -> dict[str, Any]:
    """Three epochs of an ordinary loop of Accelerate, with gradient accumulation; or until a step, and saved there."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    sampler = eq.Sampler(DATA, **data)
    loader = DataLoader(DATA, batch_sampler=sampler)
    model, optimizer, scheduler, loader = prepare(accelerator, *parts(), loader)
    seen: list[int] = []
    after: list[torch.Tensor] = []
    with attach(accelerator, model, optimizer, sampler=sampler, **choices) as together:
        if resume:
            accelerator.load_state(str(folder))
        for _ in sampler.epochs(3):
            for index, x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.cross_entropy(model(x), y))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                seen += index.tolist()
                if accelerator.sync_gradients:
                    after.append(vector(model))
                    if together.clock.step == stop:
                        accelerator.save_state(str(folder))
                        return {}
    accelerator.save_model(model, folder / "model")
    outcome = {"final": vector(model), "lr": scheduler.get_last_lr(), "saved": saved_names(folder / "model")}
    return {"after": after, "seen": seen, **outcome, **together.outcome()}


def saved_names(folder: Path) -> list[str]:
    return sorted(name for path in folder.glob("*.safetensors") for name in load_file(path))


def interrupted(folder: Path, choices: dict[str, Any], stop: int, **data: Any) -> dict[str, Any]:
    undisturbed = loop(folder, choices, data=data)
    loop(folder, choices, data=data, stop=stop)
    resumed = loop(folder, choices, data=data, resume=True)
    return {"undisturbed": undisturbed, "resumed": resumed, "folder": str(folder)}


def logged(folder: Path) -> list[tuple[int, int]]:
    """A log that goes on after a resume: workers and steps of its events."""
    choices = {"log": folder / "log", "log_every": 1, "period": 3}
    loop(folder, choices, data={"batch": 4}, stop=2)
    loop(folder, choices, data={"batch": 4}, resume=True)
    return [(e["worker"], e["step"]) for e in read_events(folder / "log") if e["event"] == "step"]


def averaged(rank: int, ours: bool) -> torch.Tensor:
    """Local SGD with two steps between rounds, by us and by Accelerate."""
    accelerator = Accelerator(cpu=True)
    model, optimizer, _ = parts(dropout=0.0)
    mine = slice(rank * 11, rank * 11 + 11)
    x, y = INPUTS[mine], TARGETS[mine]

    def train(model: nn.Module, optimizer: Any, step: Any = lambda: None) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            step()

    if ours:
        model, optimizer = prepare(accelerator, model, optimizer)
        with attach(accelerator, model, optimizer, sync=eq.sync.PeriodicAverage(), period=2):
            train(model, optimizer)
    else:
        model, optimizer = accelerator.prepare(model, optimizer)
        with LocalSGD(accelerator, model, local_sgd_steps=2) as local_sgd:
            train(model, optimizer, local_sgd.step)
    return vector(model)


def overflow(rank: int) -> dict[str, Any]:
    """A loss that is infinite on worker 1 at the second step, under a scaler: the one of float16 needs a GPU."""
    accelerator = Accelerator(cpu=True)
    scaler = accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model, optimizer = prepare(accelerator, *parts()[:2])
    after = []
    with attach(accelerator, model, optimizer, sync=eq.sync.DeTAG()) as together:
        for step in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(INPUTS), TARGETS)
            accelerator.backward(loss * (torch.inf if step == 1 and rank == 1 else 1.0))
            optimizer.step()
            after.append(vector(model))
    return {"after": after, "steps": together.clock.step, "scale": scaler.get_scale()}


def refusals() -> list[str]:
    """What is said where the loop would not be what it seems."""
    accelerator = Accelerator(cpu=True)
    sampler = eq.Sampler(DATA, batch=2)
    loader = accelerator.prepare(DataLoader(DATA, batch_sampler=sampler))
    said = []
    with pytest.raises(UserError) as error:
        next(iter(loader))
    said.append(str(error.value))
    model, optimizer = accelerator.prepare(*parts()[:2])
    with pytest.raises(UserError) as error, attach(accelerator, model, optimizer):
        pass
    said.append(str(error.value))
    model, plain, _ = parts()
    with pytest.raises(UserError) as error:
        eq.attach(model, accelerator.prepare(plain))
    return [*said, str(error.value)]


def example(folder: Path) -> tuple[float, int]:
    """examples/accelerate_loop.py, as it stands."""
    os.chdir(folder)
    made = runpy.run_path(str(EXAMPLE))
    return made["accuracy"], made["together"].clock.rounds


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    choices = {"sync": eq.sync.SlowMo(), "period": 3}

    def work(rank: int) -> dict[str, Any]:
        return {
            # 22 examples, 3 + 2 of them in a batch: 5 batches and so 3 steps to an epoch.
            "local": interrupted(folder / "local", choices, 5, **UNEQUAL),
            "events": logged(folder / "logged"),
            "ours": averaged(rank, ours=True),
            "theirs": averaged(rank, ours=False),
            "overflow": overflow(rank),
            "example": example(folder),
            "refusals": refusals(),
        }

    return under_torchrun(quiet(work), 2, patience=400)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("four")
    choices = {"sync": eq.sync.DPSGD(), "wire": eq.wire.BFloat16()}
    return under_torchrun(quiet(lambda rank: interrupted(folder, choices, 2, batch=2)), 4, patience=400)


@pytest.mark.parametrize("launch", ["two", "four"])
def test_it_resumes_to_the_same_bits(launch: str, request: pytest.FixtureRequest) -> None:
    for found in request.getfixturevalue(launch):
        found = found.get("local", found)
        undisturbed, resumed = found["undisturbed"], found["resumed"]
        late = undisturbed["after"][-len(resumed["after"]) :]
        assert 0 < len(late) < len(undisturbed["after"])
        assert all(torch.equal(a, b) for a, b in zip(resumed["after"], late, strict=True))
        assert torch.equal(resumed["final"], undisturbed["final"])
        assert resumed["lr"] == undisturbed["lr"]
        assert (resumed["steps"], resumed["samples"]) == (undisturbed["steps"], undisturbed["samples"])


def test_every_example_once_in_an_epoch_and_no_traffic_between_rounds(two: list[dict[str, Any]]) -> None:
    first, second = (found["local"]["undisturbed"] for found in two)
    seen = collections.Counter(first["seen"] + second["seen"])
    assert seen == collections.Counter(list(range(EXAMPLES)) * 3)
    assert [row["samples"] for row in first["workers"]] == [3 * 13, 3 * 9]
    assert first["steps"] == 9
    for step, (a, b) in enumerate(zip(first["after"], second["after"], strict=True), 1):
        assert torch.equal(a, b) == (step % 3 == 0)
    assert torch.equal(first["final"], second["final"])
    assert first["bytes"] == 3 * 2 * 4 * len(first["final"])  # rounds, workers, float32


def test_the_saved_model_is_the_agreed_one(two: list[dict[str, Any]]) -> None:
    folder = Path(two[0]["local"]["folder"])
    paths = sorted(folder.glob("equipoise-worker-*.pt"))
    first, second = (torch.load(path, weights_only=True)["state"]["model"] for path in paths)
    saved = load_file(folder / "model.safetensors")
    assert sorted(saved) == two[0]["local"]["undisturbed"]["saved"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert any(not torch.equal(first[name], second[name]) for name in saved)
    for name, value in saved.items():  # by the workers' shares of the examples
        assert torch.allclose(value, (13 * first[name] + 9 * second[name]) / EXAMPLES, atol=1e-6)


def test_periodic_average_is_their_local_sgd(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert torch.allclose(found["ours"], found["theirs"], atol=1e-6)
    assert torch.equal(two[0]["ours"], two[1]["ours"])


def test_all_skip_the_step_that_overflows_on_one(two: list[dict[str, Any]]) -> None:
    for found in two:
        before, skipped, after, last = found["overflow"]["after"]
        assert torch.equal(before, skipped)
        assert not torch.equal(skipped, after)
        assert last.isfinite().all()
        assert (found["overflow"]["steps"], found["overflow"]["scale"]) == (3, 4.0)


def test_what_would_not_be_what_it_seems_is_refused(two: list[dict[str, Any]]) -> None:
    for found in two:
        divided, wrapped, hooks = found["refusals"]
        assert divided.startswith("accelerator.prepare(loader) divides the batches of eq.Sampler")
        assert wrapped.startswith("accelerator.prepare has wrapped the model in DistributedDataParallel")
        assert hooks.startswith("the optimizer is wrapped in AcceleratedOptimizer, which has no step hooks")


def test_the_log_goes_on_after_a_resume(two: list[dict[str, Any]]) -> None:
    assert sorted(two[0]["events"]) == [(worker, step) for worker in range(2) for step in range(1, 7)]


def test_the_example_learns(two: list[dict[str, Any]]) -> None:
    assert two[0]["example"] == two[1]["example"]
    accuracy, rounds = two[0]["example"]
    assert rounds == 6 * 16 // 8
    assert accuracy > 0.8


def test_a_sampler_is_a_batch_sampler() -> None:
    assert isinstance(eq.Sampler(DATA), torch.utils.data.BatchSampler)
