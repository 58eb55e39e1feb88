"""Small runs of Hugging Face Trainer, in processes that torchrun might have started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from equipoise.integrations.huggingface import EquipoiseCallback

WORDS, LENGTH, EXAMPLES = 16, 6, 22
_TOKENS = torch.randint(0, WORDS, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": row, "labels": row} for row in _TOKENS]
CONFIG: dict[str, int] = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


class Models(TrainerCallback):
    """This worker's model after every step."""

    def __init__(self) -> None:
        self.after: list[torch.Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        self.after.append(vector(model))


def vector(model: nn.Module) -> torch.Tensor:
    """The trainable parameters."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters() if p.requires_grad])


def language_model(dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**CONFIG, attention_dropout=dropout))


def trainer_of(
    folder: Path,
    callback: EquipoiseCallback | None,
    *,
    model: nn.Module | None = None,
    data: Any = DATA,
    eval_data: Any = None,
    **args: Any,
) -> tuple[Trainer, Models]:
    given = {"per_device_train_batch_size": 2, "learning_rate": 0.01, "max_steps": 6, "save_strategy": "no"} | args
    arguments = TrainingArguments(str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **given)
    models = Models()
    callbacks = [models] if callback is None else [callback, models]
    trainer = Trainer(
        model or language_model(), arguments, train_dataset=data, eval_dataset=eval_data, callbacks=callbacks
    )
    return trainer, models


def train(folder: Path, callback: EquipoiseCallback | None, resume: bool = False, **more: Any) -> dict[str, Any]:
    """What came of a run: models and counters."""
    trainer, models = trainer_of(folder, callback, **more)
    trainer.train(resume_from_checkpoint=resume or None)
    return {
        "after": models.after,
        "final": vector(trainer.model),
        "result": callback.result if callback is not None else {},
        "lr": trainer.lr_scheduler.get_last_lr(),
        "step": trainer.state.global_step,
        "eval_loss": next((row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row), None),
    }


def stopped(folder: Path, callback: EquipoiseCallback, stop: int, resume: bool = False, **more: Any) -> None:
    """A run that is stopped after so many steps, with a checkpoint."""

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = control.should_training_stop = state.global_step == stop

    trainer, _ = trainer_of(folder, callback, **more)
    trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=resume or None)
