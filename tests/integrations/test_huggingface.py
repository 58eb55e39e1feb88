"""Hugging Face Trainer under `EquipoiseCallback`, on 2 and 4 processes.

Importing transformers and starting processes take longer than these runs, so each launch serves several tests.
"""

from __future__ import annotations

import math
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

for package in ("transformers", "accelerate", "peft"):
    pytest.importorskip(package, reason=f"needs {package}: pip install 'equipoise[hf]'")

import peft  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

import equipoise as eq  # noqa: E402
from equipoise.core.errors import CheckpointError, UserError  # noqa: E402
from equipoise.integrations.huggingface import EquipoiseCallback  # noqa: E402

from ..launch.test_torchrun import under_torchrun  # noqa: E402
from . import huggingface_runs as runs  # noqa: E402
from .quiet import quiet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # those of other packages
ROUNDING = 1e-6
EXAMPLE = Path(__file__).parents[2] / "examples" / "hf_trainer.py"


# -- what the processes do ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")

    def loop(rank: int) -> dict[str, Any]:
        return {
            "local": local(folder / "local"),
            "averaged": full_batches(folder / "averaged", EquipoiseCallback(batch=[10, 6])),
            "ddp": full_batches(folder / "ddp", None),
            "learning": learning(folder / "learning"),
            "lora": lora(folder / "lora"),
            "overflow": overflow(rank, folder / "overflow"),
            "example": example(folder),
        }

    return under_torchrun(quiet(loop), 2, patience=400)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("four")
    choices = {"sync": eq.sync.EASGD(), "period": 2, "final": "centre"}

    def loop(rank: int) -> dict[str, Any]:
        arguments = {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 3, "eval_data": runs.DATA[:8]}
        return interrupted(folder, lambda: EquipoiseCallback(**choices), (3,), arguments)

    return under_torchrun(quiet(loop), 4, patience=400)


def interrupted(folder: Path, callback: Any, stops: tuple[int, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    """A run, and the same one that was stopped and went on."""
    undisturbed = runs.train(folder / "undisturbed", callback(), **arguments)
    for number, stop in enumerate(stops):
        runs.stopped(folder / "resumed", callback(), stop, resume=number > 0, **arguments)
    resumed = runs.train(folder / "resumed", callback(), resume=True, **arguments)
    return {"undisturbed": undisturbed, "resumed": resumed, "folder": str(folder / "resumed")}


def local(folder: Path) -> dict[str, Any]:
    """22 examples, 3 + 2 of them in a batch: 5 batches and so 3 steps to an epoch, the last one of a single batch."""
    arguments = {
        "max_steps": 8,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine",
        "logging_steps": 2,
        "bf16": True,
    }
    stops = 3, 5  # at the end of an epoch, and in the middle of one
    sync = eq.sync.SlowMo()
    return interrupted(folder, lambda: EquipoiseCallback(sync=sync, period=3, batch=[3, 2]), stops, arguments)


def full_batches(folder: Path, callback: EquipoiseCallback | None) -> torch.Tensor:
    """Every step sees all 16 examples, however they are divided, and its gradient is clipped."""
    arguments = {"per_device_train_batch_size": 8, "max_steps": 3, "max_grad_norm": 0.1, "optim": "sgd"}
    return runs.train(folder, callback, data=runs.DATA[:16], model=runs.language_model(0.0), **arguments)["final"]


def learning(folder: Path) -> dict[str, Any]:
    """An order that learns from gradients, and a norm test that lets batches grow."""
    growing = eq.batch.NormTest(start=1, most=4, eta=0.1)
    return runs.train(folder, EquipoiseCallback(batch=growing, order=eq.order.PairBalance()), max_steps=16)["result"]


def lora(folder: Path) -> dict[str, Any]:
    def model() -> Any:
        adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        return peft.get_peft_model(runs.language_model(), adapters)

    undisturbed = runs.train(folder / "a", EquipoiseCallback(period=2), model=model(), max_steps=4)
    runs.stopped(folder / "b", EquipoiseCallback(period=2), 3, model=model(), max_steps=4)
    resumed = runs.train(folder / "b", EquipoiseCallback(period=2), resume=True, model=model(), max_steps=4)
    return {"undisturbed": undisturbed, "resumed": resumed, "folder": str(folder / "b")}


def overflow(rank: int, folder: Path) -> dict[str, Any]:
    """A loss that is infinite on worker 1 at the second step, under a scaler: the one of float16 needs a GPU."""
    callback = EquipoiseCallback(sync=eq.sync.DeTAG())
    trainer, models = runs.trainer_of(folder, callback, max_steps=4)
    scaler = trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    class Loss(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
            model.lm_head.weight.grad = None
            if state.global_step == 1 and rank == 1:
                model.lm_head.weight.grad = torch.full_like(model.lm_head.weight, torch.inf)

    trainer.add_callback(Loss())
    trainer.train()
    return {"after": models.after, "steps": callback.result["steps"], "scale": scaler.get_scale()}


def example(folder: Path) -> tuple[float, int]:
    """examples/hf_trainer.py, as it stands."""
    os.chdir(folder)
    made = runpy.run_path(str(EXAMPLE))
    return made["loss"], made["together"].result["rounds"]


def mean(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """By the workers' shares of the examples."""
    return (13 * first + 9 * second) / runs.EXAMPLES


# -- what is expected of them ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("launch", ["two", "four"])
def test_it_resumes_to_the_same_bits(launch: str, request: pytest.FixtureRequest) -> None:
    for found in request.getfixturevalue(launch):
        found = found.get("local", found)
        undisturbed, resumed = found["undisturbed"], found["resumed"]
        assert resumed["step"] == undisturbed["step"]
        late = undisturbed["after"][-len(resumed["after"]) :]
        assert 0 < len(late) < undisturbed["step"]
        assert all(torch.equal(a, b) for a, b in zip(resumed["after"], late, strict=True))
        assert torch.equal(resumed["final"], undisturbed["final"])
        assert resumed["lr"] == undisturbed["lr"]
        assert resumed["result"]["bytes"] == undisturbed["result"]["bytes"]


def test_workers_train_on_their_own_between_rounds(two: list[dict[str, Any]]) -> None:
    """DistributedDataParallel would keep them equal at every step, and Trainer's loader would divide the data again."""
    first, second = (found["local"]["undisturbed"] for found in two)
    for step, (a, b) in enumerate(zip(first["after"], second["after"], strict=True), 1):
        assert torch.equal(a, b) == (step % 3 == 0)
    assert torch.equal(first["final"], second["final"])
    assert torch.allclose(first["final"], mean(first["after"][-1], second["after"][-1]), atol=ROUNDING)
    result = first["result"]
    assert result["rounds"] == 2
    assert result["bytes"] == 2 * 2 * 4 * len(first["final"])  # rounds, workers, float32
    assert [row["samples"] for row in result["workers"]] == [2 * 13 + 12, 2 * 9 + 8]  # two epochs and two steps


def test_the_saved_model_is_the_agreed_one(two: list[dict[str, Any]]) -> None:
    folder = Path(two[0]["local"]["folder"]) / "checkpoint-5"
    paths = sorted(folder.glob("equipoise-worker-*.pt"))
    first, second = (torch.load(path, weights_only=True)["state"]["model"] for path in paths)
    saved = load_file(folder / "model.safetensors")
    assert set(saved) == set(runs.language_model().state_dict())
    assert any(not torch.equal(first[name], second[name]) for name in saved)
    assert all(torch.allclose(value, mean(first[n], second[n]), atol=ROUNDING) for n, value in saved.items())
    assert torch.load(folder / "training_args.bin", weights_only=False).max_grad_norm == 1.0


def test_the_centre_is_the_model_at_the_end_and_in_evaluations(four: list[dict[str, Any]]) -> None:
    runs_of_all = [found["undisturbed"] for found in four]
    assert all(torch.equal(run["final"], runs_of_all[0]["final"]) for run in runs_of_all)
    mean = torch.stack([run["after"][-1] for run in runs_of_all]).mean(0)
    assert not torch.allclose(mean, runs_of_all[0]["final"], atol=1e-4)
    evaluations = [run["eval_loss"] for run in runs_of_all]
    assert len(set(evaluations)) == 1
    assert evaluations[0] is not None


def test_gradients_are_averaged_by_batch_and_clipped_afterwards_as_by_ddp(two: list[dict[str, Any]]) -> None:
    start = runs.vector(runs.language_model(0.0))
    for found in two:
        assert torch.allclose(found["averaged"], found["ddp"], atol=ROUNDING)
        moved = float((found["ddp"] - start).norm())
        assert 0.3 * 0.01 * 0.1 < moved < 3 * 0.01 * 0.1 + ROUNDING  # steps of learning rate times norm


def test_orders_and_batch_rules_see_the_gradients(two: list[dict[str, Any]]) -> None:
    for found in two:
        result = found["learning"]
        assert result["steps"] == 16, "as many steps as were asked for, though the epochs became shorter"
        assert result["samples"] > 2 * 1 * 16


def test_of_lora_only_the_adapters_travel_and_are_kept(two: list[dict[str, Any]]) -> None:
    for found in two:
        undisturbed, resumed = found["lora"]["undisturbed"], found["lora"]["resumed"]
        adapters = len(undisturbed["final"])
        assert adapters == 2 * (8 * 2 + 2 * 8)
        assert undisturbed["result"]["bytes"] == 2 * 2 * 4 * adapters
        assert torch.equal(undisturbed["final"], resumed["final"])
    paths = list(Path(found["lora"]["folder"]).rglob("equipoise-worker-*"))
    states = [torch.load(path, weights_only=True)["state"]["model"] for path in paths]
    assert states
    assert all("lora" in name for state in states for name in state)


def test_all_skip_the_step_that_overflows_on_one(two: list[dict[str, Any]]) -> None:
    for found in two:
        before, skipped, after, last = found["overflow"]["after"]
        assert torch.equal(before, skipped)
        assert not torch.equal(skipped, after)
        assert last.isfinite().all()
        assert found["overflow"]["steps"] == 3
        assert found["overflow"]["scale"] == 4.0


def test_the_example_learns(two: list[dict[str, Any]]) -> None:
    assert two[0]["example"] == two[1]["example"]
    loss, rounds = two[0]["example"]
    assert rounds == 4
    assert loss < 1.0 < math.log(10)


# -- refusals ----------------------------------------------------------------------------------------------------------
def test_what_cannot_work_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="EquipoiseCallback has no option 'clip'; there are: sync"):
        EquipoiseCallback(clip=1.0)
    trainer, _ = runs.trainer_of(tmp_path, None)
    trainer.add_callback(EquipoiseCallback())
    with pytest.raises(UserError, match="pass EquipoiseCallback in Trainer"):
        trainer.train()
    with pytest.raises(UserError, match="leave out auto_find_batch_size and ignore_data_skip"):
        runs.trainer_of(tmp_path, EquipoiseCallback(), ignore_data_skip=True)
    runs.train(tmp_path, None, max_steps=1, save_strategy="steps", save_steps=1)
    with pytest.raises(CheckpointError, match="checkpoint-1: the file of worker 0 on .* cannot be read"):
        runs.train(tmp_path, EquipoiseCallback(), resume=True)
