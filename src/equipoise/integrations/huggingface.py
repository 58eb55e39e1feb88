"""Hugging Face Trainer: a callback under which its workers train together by any sync, period, batch and partition."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from ..batch.base import Batch
from ..core.errors import UserError
from ..core.extras import require
from ..loop.attach import attach
from ..loop.sampler import Sampler
from ..loop.state import TrainedPart
from ..order.base import Order
from ..partition.base import Partition
from ..partition.iid import IID
from .worker_files import load_workers, save_workers
from .worker_state import refuse_unknown

require("transformers", "hf", "the callback for Hugging Face Trainer")
require("accelerate", "hf", "the callback for Hugging Face Trainer")

from transformers import Trainer, TrainerCallback  # noqa: E402
from transformers.trainer_utils import get_last_checkpoint  # noqa: E402

_DECIDED = ("sampler", "accumulate", "clip", "scaler", "scheduler", "seed", "final", "elastic", "deadline")


class EquipoiseCallback(TrainerCallback):
    """Let the workers of a Hugging Face Trainer train together.

        Trainer(model, args, train_dataset=data, callbacks=[EquipoiseCallback(period=8, batch=[8, 4])])

    The model is not wrapped in DistributedDataParallel: what travels is what the sync sends. Gradient accumulation,
    clipping (after the sync has combined the gradient), mixed precision, seed and scheduler are those of
    `TrainingArguments`. Evaluation, saved models and the model after `train()` are the agreed one. Checkpoints hold
    every worker's own state too, and `train(resume_from_checkpoint=True)` goes on to the same bits.

    partition, order, batch: of the training data, as in `eq.Sampler`. batch: `per_device_train_batch_size` if left
        out; a list gives a size to each worker, and examples in proportion unless there is a partition.
    final: the agreed model: "mean", or "centre" for a sync that has one.
    choices: `sync`, `wire`, `period`, `buffers`, `nonfinite`, `log` and other arguments of `eq.attach`.

    After `train()`, `result` has the counters of all workers: bytes, messages, rounds.
    """

    def __init__(
        self,
        *,
        partition: Partition | None = None,
        order: Order | None = None,
        batch: Batch | int | list[int] | None = None,
        final: str = "mean",
        **choices: Any,
    ):
        refuse_unknown(choices, _DECIDED, "EquipoiseCallback")
        self.partition, self.order, self.batch, self.final, self.choices = partition, order, batch, final, choices
        self.trainer: Any = None
        self.together: attach | None = None  # while Trainer trains
        self.result: dict[str, Any] = {}
        self._batches: StepsOfEpoch | None = None
        self._loss: torch.Tensor | None = None  # of the step that is being computed
        self._checkpoint: Path | None = None  # to resume from
        self._norm = 0.0  # to which Trainer would clip

    # -- events --------------------------------------------------------------------------------------------------------
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer = trainer = _calling_trainer()
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or args.n_gpu > 1:
            raise UserError(
                "FSDP, DeepSpeed and DataParallel divide the model or its batches themselves: leave them out"
            )
        if args.auto_find_batch_size or args.ignore_data_skip:
            raise UserError("leave out auto_find_batch_size and ignore_data_skip: pass batch= to EquipoiseCallback")
        args.average_tokens_across_devices = False  # else every step waits for all workers; the sync weights gradients
        accelerator = trainer.accelerator
        accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)
        trainer.get_train_dataloader = functools.partial(self._loader, trainer.get_train_dataloader)
        trainer.training_step = functools.partial(self._training_step, trainer.training_step)
        trainer.train = functools.partial(self._train, trainer.train)
        trainer.log = functools.partial(self._log, trainer.log)
        for name in ("evaluate", "predict", "save_model"):
            setattr(trainer, name, functools.partial(self._with_agreed, getattr(trainer, name)))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer is None:
            raise UserError("add_callback comes too late: pass EquipoiseCallback in Trainer(callbacks=[...])")
        trainer = self.trainer
        together = attach(
            trainer.model,
            trainer.optimizer.optimizer,
            scheduler=trainer.lr_scheduler,
            scaler=trainer.accelerator.scaler,
            sampler=None if self._batches is None else self._batches.drawn_from,
            accumulate=args.gradient_accumulation_steps,
            clip=args.max_grad_norm or None,
            seed=args.seed,
            final=self.final,
            **self.choices,
        )
        together.saved_model = TrainedPart(trainer.model)
        self.together = together.__enter__()
        self._norm, args.max_grad_norm = args.max_grad_norm, 0.0  # the sync combines gradients before they are clipped
        together.comm.ledger.messages = together.comm.ledger.bytes = 0  # of this call of train()
        if self._checkpoint is not None:
            load_workers(together, self._checkpoint)
            if self._batches is not None:
                self._batches.passed_over(state.global_step, args.gradient_accumulation_steps)
                trainer._load_rng_state = lambda checkpoint: None  # Trainer would do so after the first batch is drawn

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.together is not None
        self.together.loss, self._loss = None if self._loss is None else self._loss.item(), None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.together is not None and not args.save_only_model:
            save_workers(self.together, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        together = self.together
        assert together is not None
        self.result = together.outcome()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            together.final = None  # all workers have just read the best one
        self._leave(None)

    # -- what Trainer does ---------------------------------------------------------------------------------------------
    def _train(self, train: Callable[..., Any], resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is True:
            found = get_last_checkpoint(self.trainer.args.output_dir)
            resume_from_checkpoint = found or True  # Trainer says that there is none
        self._checkpoint = Path(resume_from_checkpoint) if isinstance(resume_from_checkpoint, (str, Path)) else None
        try:
            return train(resume_from_checkpoint, *args, **kwargs)
        except BaseException as error:
            if self.together is not None:
                self._leave(error)
            raise

    def _leave(self, error: BaseException | None) -> None:
        together, self.together = self.together, None
        assert together is not None
        self.trainer.args.max_grad_norm = self._norm
        together.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    def _loader(self, loader_of_trainer: Callable[[], DataLoader[Any]]) -> DataLoader[Any]:
        """Trainer's own loader, with other batches."""
        loader = loader_of_trainer()
        args = self.trainer.args
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):
            if (self.partition, self.order, self.batch) != (None, None, None):
                raise UserError("partition, order and batch need examples that can be indexed: not an IterableDataset")
            return loader
        batch = args.train_batch_size if self.batch is None else self.batch
        partition = self.partition
        if partition is None and isinstance(batch, list):
            partition = IID(speeds=[float(size) for size in batch])  # all come to the end of their part together
        sampler = Sampler(
            loader.dataset,
            partition=partition,
            order=self.order,
            batch=batch,
            seed=args.data_seed if args.data_seed is not None else args.seed,
            drop_last=args.dataloader_drop_last,
            group=self.choices.get("group"),
        )
        self._batches = StepsOfEpoch(sampler)
        kept = ("num_workers", "collate_fn", "pin_memory", "worker_init_fn", "multiprocessing_context")
        more = ("prefetch_factor", "persistent_workers")
        same = {name: getattr(loader, name) for name in (*kept, *more)}
        return DataLoader(loader.dataset, batch_sampler=self._batches, **same)

    def _training_step(self, training_step: Callable[..., torch.Tensor], model: Any, *rest: Any, **named: Any) -> Any:
        sampler = None if self._batches is None else self._batches.drawn_from
        with contextlib.nullcontext() if sampler is None else sampler.watching(model):
            loss = training_step(model, *rest, **named)
        self._loss = loss if self._loss is None else self._loss + loss
        return loss

    def _with_agreed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """While workers' models differ, with the one on which they agree; all workers call it together."""
        if self.together is None:
            return function(*args, **kwargs)
        given = self.trainer.args
        with self.together.evaluating(self._agreed):
            given.max_grad_norm = self._norm  # as it is saved with the model
            try:
                return function(*args, **kwargs)
            finally:
                given.max_grad_norm = 0.0

    @property
    def _agreed(self) -> str:
        assert self.together is not None
        return self.final if self.together.comm.size > 1 else "mean"

    def _log(self, log: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        if self.together is not None:
            logs = logs | {"rounds": self.together.clock.rounds, "bytes_sent": self.together.comm.ledger.bytes}
        return log(logs, *args, **kwargs)


class StepsOfEpoch(BatchSampler):
    """The batches of an `eq.Sampler`, in epochs of as many steps as Trainer was told at the start.

    Where batch sizes stay the same, these are the epochs of the sampler.
    """

    def __init__(self, sampler: Sampler):
        self.drawn_from, self.length = sampler, len(sampler)
        self._passed_over = 0

    def passed_over(self, steps: int, accumulate: int) -> None:
        """After `steps` optimizer steps of a run that is resumed, Trainer passes over the first batches of its epoch.

        The sampler has done so already.
        """
        self._passed_over = steps % -(-self.length // accumulate) * accumulate

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        first, self._passed_over = self._passed_over, 0
        yield from ([] for _ in range(first))
        left = self.length - first
        while left > 0:
            if self.drawn_from.drawn:
                raise UserError(
                    "batch sizes change while batches are drawn ahead: leave out gradient_accumulation_steps and "
                    "dataloader_num_workers"
                )
            for batch in self.drawn_from:
                left -= 1
                yield batch
                if not left:
                    return


def _calling_trainer() -> Any:
    """The Trainer that is being made: callbacks are not told."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), Trainer):
            return owner
        frame = frame.f_back
    raise UserError("EquipoiseCallback is for transformers.Trainer: pass it in Trainer(callbacks=[...])")
