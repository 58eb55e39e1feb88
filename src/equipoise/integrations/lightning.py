"""Lightning: a strategy for its Trainer and one for Fabric. Processes and devices are those of DDP, without DDP."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..core.errors import UserError
from ..core.extras import require
from ..loop.attach import attach
from ..loop.sampler import Sampler
from .lightning_data import sampled
from .worker_state import put_back_worker_state, refuse_unknown, worker_state

require("lightning", "lightning", "equipoise.integrations.lightning")

from lightning.fabric.strategies import DDPStrategy as FabricDDP  # noqa: E402
from lightning.fabric.strategies.strategy import _BackwardSyncControl  # noqa: E402
from lightning.fabric.utilities.data import _update_dataloader  # noqa: E402
from lightning.fabric.wrappers import _unwrap_objects  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402
from lightning.pytorch.trainer.states import RunningStage  # noqa: E402
from lightning.pytorch.utilities.model_helpers import is_overridden  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler  # noqa: E402

_KEY = "equipoise"  # of what a checkpoint of Lightning says of those of the workers
_DECIDED = ("clip", "elastic", "deadline", "group", "sampler", "scaler", "scheduler")


def worker_file(path: Any, rank: int) -> str:
    """Where a worker writes its part of the checkpoint `path`."""
    text = os.fspath(path)
    if os.path.islink(text):  # ModelCheckpoint(save_last="link")
        text = os.path.realpath(text)
    return f"{text.removesuffix('.ckpt')}.worker-{rank}.pt"


class EquipoiseStrategy(DDPStrategy):
    """`Trainer(strategy=EquipoiseStrategy(sync=..., period=8), devices=4)`: any choice of Equipoise, no DDP.

    The LightningModule and the DataModule stay as they are. The examples of the training loader are divided among the
    workers, in batches of its size or of `batch`.

    partition, order, batch: as in `eq.Sampler`. `batch=[64, 32]` is a batch size per worker.
    final: the model that is validated, saved in checkpoints and held by all workers at the end: "mean" or "centre".
    accumulate: batches for one optimizer step where `training_step` accumulates them by hand.
    options: all others of `eq.attach`, such as `sync`, `period`, `wire`, `buffers`, `nonfinite`, `seed`, `log`. The
        gradient is clipped to `Trainer(gradient_clip_val=...)` after the sync has combined it.
    start_method: "popen", "spawn" or "fork", as of Lightning's DDPStrategy.
    """

    def __init__(
        self,
        *,
        partition: Any = None,
        order: Any = None,
        batch: Any = None,
        final: str = "mean",
        accumulate: int | None = None,
        start_method: str = "popen",
        process_group_backend: str | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        **options: Any,
    ):
        refuse_unknown(options, _DECIDED, "EquipoiseStrategy")
        if options.get("timeout") is not None:
            limit = {"timeout": datetime.timedelta(seconds=options["timeout"])}
        else:
            limit = {}
        super().__init__(
            start_method=start_method,
            process_group_backend=process_group_backend,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            **limit,
        )
        self.data_choices = {"partition": partition, "order": order, "batch": batch, "seed": options.get("seed", 0)}
        self.options, self.final, self.accumulate = options, final, accumulate
        self.together: attach | None = None  # while the model is trained
        self._sampler: Sampler | None = None
        self._loaders = 0  # for training, that were set up
        self._stepped = True  # has an optimizer step used the gradient?
        self._resumed: tuple[str, Any] | None = None  # the checkpoint that is resumed from
        self._undo = contextlib.ExitStack()  # of changes in the Trainer
        self._watch = contextlib.ExitStack()  # around forward and backward of one batch
        self._evaluation: contextlib.AbstractContextManager[Any] | None = None

    # -- without DDP ---------------------------------------------------------------------------------------------------
    def configure_ddp(self) -> None:
        """The model is not wrapped."""

    def setup(self, trainer: Any) -> None:
        # Lightning would divide the training data too: loaders for evaluation are divided below.
        connector = trainer._accelerator_connector
        divided, connector.use_distributed_sampler = connector.use_distributed_sampler, False
        self._divided = divided
        self._undo.callback(setattr, connector, "use_distributed_sampler", divided)
        super().setup(trainer)

    def process_dataloader(self, dataloader: object) -> object:
        trainer = self.lightning_module.trainer
        if trainer.state.stage != RunningStage.TRAINING:
            connector = trainer._accelerator_connector
            connector.use_distributed_sampler = self._divided
            try:
                return trainer._data_connector._prepare_dataloader(dataloader, shuffle=False, mode=trainer.state.stage)
            finally:
                connector.use_distributed_sampler = False
        self._loaders += 1
        if self._loaders > 1:
            raise UserError(
                "there is more than one training loader: return one DataLoader from train_dataloader() and leave out "
                "reload_dataloaders_every_n_epochs"
            )
        loader, self._sampler = sampled(dataloader, **self.data_choices)
        return loader

    # -- the step ------------------------------------------------------------------------------------------------------
    def on_train_start(self) -> None:
        super().on_train_start()
        trainer, module = self.lightning_module.trainer, self.lightning_module
        if len(self.optimizers) != 1:
            raise UserError(f"configure_optimizers returns {len(self.optimizers)} optimizers: workers share one")
        if self._sampler is not None:
            self._sampler.give_back()  # to a loader that has begun before anything was put back
        clip = None
        own_clipping = is_overridden("configure_gradient_clipping", module)
        if trainer.gradient_clip_algorithm in (None, "norm") and not own_clipping:
            clip, trainer.gradient_clip_val = trainer.gradient_clip_val, None
            self._undo.callback(setattr, trainer, "gradient_clip_val", clip)
        together = attach(
            module,
            self.optimizers[0],
            sampler=self._sampler,
            accumulate=self._accumulated(),
            clip=clip,
            scaler=getattr(self.precision_plugin, "scaler", None),
            final=self.final,
            **self.options,
        )
        if not together.period_choice.lockstep:
            name = type(together.period_choice).__name__
            raise UserError(f"{name} lets workers take unequal numbers of steps, and Lightning counts the same on all")
        self.together = together.__enter__()
        if self._resumed is not None:
            self._put_back(*self._resumed)
        iter(trainer.fit_loop._data_fetcher)
        self._follow_signals(trainer.fit_loop.epoch_loop)

    def _follow_signals(self, loop: Any) -> None:
        """Lightning asks worker 0 for signals at every step, for which all must wait: ask after rounds."""
        ask = getattr(loop, "_broadcast_sigterm_tensor", None)
        if ask is not None:
            together = self.together
            loop._broadcast_sigterm_tensor = lambda: ask() if together is not None and together.clock.due else None
            self._undo.callback(delattr, loop, "_broadcast_sigterm_tensor")

    def _accumulated(self) -> int:
        return self.accumulate or int(self.lightning_module.trainer.accumulate_grad_batches)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.close()
        if self._sampler is not None:
            if self._stepped and self._sampler.order.learning and self.lightning_module.automatic_optimization:
                # Lightning does so after the forward pass: the order takes what is there before it for accumulated.
                self.optimizers[0].zero_grad()
            self._stepped = False
            self._watch.enter_context(self._sampler.watching(self.lightning_module))
        result = super().training_step(*args, **kwargs)
        if not self.lightning_module.automatic_optimization:
            self._watch.close()
        return result

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        loss = super().backward(closure_loss, *args, **kwargs)
        if self.lightning_module.automatic_optimization:
            self._watch.close()
        return loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        together, self._stepped = self.together, True
        assert together is not None
        together.accumulate = self._accumulated()

        def with_loss() -> Any:
            loss = closure()
            together.loss = float(loss) if isinstance(loss, torch.Tensor) else None
            return loss

        return super().optimizer_step(optimizer, with_loss, model, **kwargs)

    # -- evaluation ----------------------------------------------------------------------------------------------------
    def on_validation_start(self) -> None:
        super().on_validation_start()
        if self.together is not None:
            self._evaluation = self.together.evaluating(self._named())
            self._evaluation.__enter__()

    def on_validation_end(self) -> None:
        self._end_evaluation()
        super().on_validation_end()

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    @contextlib.contextmanager
    def _own_model(self) -> Iterator[None]:
        """The parameters of this worker, also while the agreed model is evaluated."""
        evaluated = self._evaluation is not None
        self._end_evaluation()
        yield
        if evaluated:
            self.on_validation_start()

    def _named(self) -> str:
        assert self.together is not None
        return "mean" if self.together.comm.size == 1 else self.final

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def lightning_module_state_dict(self) -> dict[str, Any]:
        if self.together is None:
            return dict(super().lightning_module_state_dict())
        with self._own_model():
            return self.together.model_state(self.final)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self.together is not None and "loops" in checkpoint:  # and not the weights alone
            with self._own_model():
                state = worker_state(self.together)
                checkpoint[_KEY] = {"token": state["token"], "workers": state["workers"]}
                self.checkpoint_io.save_checkpoint(state, worker_file(filepath, self.global_rank))
            self.barrier()  # a checkpoint that is there is complete
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        self.checkpoint_io.remove_checkpoint(worker_file(filepath, self.global_rank))

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        self._resumed = os.fspath(checkpoint_path), checkpoint.get(_KEY)
        return checkpoint

    def _put_back(self, path: str, said: dict[str, Any] | None) -> None:
        if said is None:
            return  # a checkpoint of another strategy: its model is where this one begins
        assert self.together is not None
        name, io = worker_file(path, self.global_rank), self.checkpoint_io
        put_back_worker_state(self.together, lambda: io.load_checkpoint(name, weights_only=True), path, said["token"])

    # -- the end -------------------------------------------------------------------------------------------------------
    def on_train_end(self) -> None:
        self._leave(None)
        super().on_train_end()

    def on_exception(self, exception: BaseException) -> None:
        self._leave(exception)
        super().on_exception(exception)

    def teardown(self) -> None:
        self._leave(None)
        self._undo.close()
        self._loaders, self._resumed = 0, None
        super().teardown()

    def _leave(self, error: BaseException | None) -> None:
        self._watch.close()
        self._end_evaluation()
        together, self.together = self.together, None
        if together is not None:
            together.__exit__(None if error is None else type(error), error, None)


class EquipoiseFabricStrategy(FabricDDP):
    """`Fabric(strategy=EquipoiseFabricStrategy(), devices=4)`: the processes of Fabric, and `attach` for its loop.

        model, optimizer = fabric.setup(model, optimizer)
        with fabric.strategy.attach(model, optimizer, sync=..., period=8) as together:
            ...

    `fabric.save` then writes the agreed model and a file for each worker, and `fabric.load`, called inside the block,
    goes on to the same bits.
    """

    together: attach | None = None

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._backward_sync_control = _NothingToBlock()

    def attach(self, model: nn.Module, optimizer: Any, *, final: str = "mean", **options: Any) -> attach:
        """`eq.attach` for what `fabric.setup` returned. final: the model that is saved, and held by all at the end."""
        scaler = options.pop("scaler", getattr(self.precision, "scaler", None))
        plain = _unwrap_objects(model)
        self.together = attach(plain, optimizer.optimizer, final=final, scaler=scaler, **options)
        return self.together

    def setup_module(self, module: nn.Module) -> nn.Module:
        return module

    @property
    def distributed_sampler_kwargs(self) -> None:
        """Fabric divides no data: that of an `eq.Sampler` is divided already."""
        return None

    def process_dataloader(self, dataloader: Any) -> Any:
        mine = isinstance(dataloader.batch_sampler, Sampler) or isinstance(dataloader.sampler, DistributedSampler)
        if mine or isinstance(dataloader.dataset, IterableDataset) or self.world_size == 1:
            return dataloader
        shuffle = isinstance(dataloader.sampler, RandomSampler)
        assert isinstance(dataloader, DataLoader)
        sampler: Any = DistributedSampler(dataloader.dataset, self.world_size, self.global_rank, shuffle=shuffle)
        return _update_dataloader(dataloader, sampler)

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        if self.together is None or _unwrap_objects(module) is not self.together.model:
            return dict(super().get_module_state_dict(module))
        return self.together.model_state(self.together.final or "mean")

    def save_checkpoint(self, path: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if self.together is not None:
            own = worker_state(self.together)
            state = state | {_KEY: {"token": own["token"], "workers": own["workers"]}}
            self.checkpoint_io.save_checkpoint(own, worker_file(path, self.global_rank))
            self.barrier()
        super().save_checkpoint(path, state, *args, **kwargs)

    def load_checkpoint(self, path: Any, state: Any = None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        rest: dict[str, Any] = super().load_checkpoint(path, state, *args, **kwargs)
        said, together = rest.pop(_KEY, None), self.together
        if said is not None and together is not None:
            name, io = worker_file(path, self.global_rank), self.checkpoint_io
            put_back_worker_state(
                together, lambda: io.load_checkpoint(name, weights_only=True), os.fspath(path), said["token"]
            )
        return rest


class _NothingToBlock(_BackwardSyncControl):
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
