"""Lightning's Trainer and Fabric take the same steps as a loop by hand, to the bit, and resume to the bit.

The workers are started once for all runs of a kind, as torchrun starts them: in each test is one question about what
they found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.core.errors import CheckpointError, UserError

L = pytest.importorskip("lightning", reason="lightning is not installed: pip install 'equipoise[lightning]'")
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from equipoise.integrations.lightning import EquipoiseFabricStrategy, EquipoiseStrategy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own

generator = torch.Generator().manual_seed(0)
INPUTS = torch.randn(96, 6, generator=generator)
LABELS = (INPUTS @ torch.randn(6, 3, generator=generator)).argmax(1)
DATA = TensorDataset(INPUTS, LABELS)
GROWING = eq.batch.NormTest(start=4, growth=1.5, eta=0.3, most=12)


def net(norm: type[nn.Module] = nn.LayerNorm) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), norm(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


class Module(L.LightningModule):
    """As a user has it, without a word of Equipoise."""

    def __init__(self, norm: type[nn.Module] = nn.LayerNorm, optimizers: int = 1):
        super().__init__()
        self.net, self.number = net(norm), optimizers

    def training_step(self, batch: Any, index: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validation", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches  # sets up the loader before there is an optimizer
        return [torch.optim.Adam(self.parameters(), lr=0.02) for _ in range(self.number)]


class Manual(Module):
    def __init__(self, optimizers: int = 1) -> None:
        super().__init__(nn.BatchNorm1d, optimizers)
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        optimizer.step()


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(DATA, batch_size=8, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(DATA, batch_size=8)


class Traffic(Callback):
    """Calls of torch.distributed by batch, and whether a round was due."""

    def __init__(self) -> None:
        self.calls, self.batches = 0, []

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        return call

    def on_train_batch_start(self, *args: Any) -> None:
        self.before = self.calls

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.batches.append((self.calls - self.before, trainer.strategy.together.clock.due))


def vector(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.reshape(-1).double() for value in module.state_dict().values()])


def fit(module: Any = None, *, trainer: dict[str, Any] | None = None, resume: Any = None, **choices: Any) -> Any:
    options = {"max_epochs": 2, "limit_val_batches": 0, "enable_checkpointing": False} | (trainer or {})
    module = module or Module()
    fitted = L.Trainer(
        accelerator="cpu",
        devices=eq.world_size(),
        strategy=EquipoiseStrategy(**{"period": 3, "deterministic": True, "seed": 5} | choices),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    fitted.fit(module, datamodule=Data(), ckpt_path=resume)
    return fitted, module


def read_ahead(loader: Iterable[Any]) -> Iterator[Any]:
    """As Lightning reads a loader whose length it does not know."""
    batches = iter(loader)
    following = next(batches)
    for batch in batches:
        yield following
        following = batch
    yield following


def by_hand(
    *,
    limit: int | None = None,
    ahead: bool = False,
    accumulate: int = 1,
    scaler: Any = None,
    cast: torch.dtype | None = None,
    sampler: dict[str, Any] | None = None,
    norm: type[nn.Module] = nn.LayerNorm,
    **choices: Any,
) -> torch.Tensor:
    model = net(norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batches = eq.Sampler(DATA, seed=5, **{"batch": 8} | (sampler or {}))
    loader = DataLoader(DATA, batch_sampler=batches, generator=torch.Generator())
    choices = {"period": 3, "deterministic": True, "seed": 5, "final": "mean"} | choices
    with eq.attach(model, optimizer, sampler=batches, accumulate=accumulate, scaler=scaler, **choices):
        for _ in batches.epochs(2):
            for number, (x, y) in enumerate(read_ahead(loader) if ahead else itertools.islice(loader, limit)):
                if number % accumulate == 0:
                    optimizer.zero_grad()
                with batches.watching(model):
                    with torch.autocast("cpu", dtype=cast) if cast is not None else contextlib.nullcontext():
                        loss = nn.functional.cross_entropy(model(x), y) / accumulate
                    (loss if scaler is None else scaler.scale(loss)).backward()
                if (number + 1) % accumulate == 0 and scaler is None:
                    optimizer.step()
                elif scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
            if limit is not None:
                list(batches)  # the rest of the epoch
    return vector(model)


def started(runs: Callable[[], dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    """What the runs found, by worker."""

    def main(comm: Any) -> dict[str, Any]:
        told = {"RANK": comm.rank, "LOCAL_RANK": comm.rank, "WORLD_SIZE": comm.size, "GROUP_RANK": 0}
        told |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
        os.environ.update({name: str(value) for name, value in told.items()})
        return runs()

    found: list[dict[str, Any]] = eq.spawn(main, workers, deterministic=True, timeout=100)
    return found


def refusal(module: Any = None, **choices: Any) -> str:
    with pytest.raises((UserError, CheckpointError)) as caught:
        fit(module, **choices)
    return str(caught.value)


# -- four workers ------------------------------------------------------------------------------------------------------
def on_four(folder: Path) -> dict[str, Any]:
    unequal, found = {"batch": [12, 8, 6, 6]}, {}
    found["by hand"] = by_hand(sampler=unequal)
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    latest = ModelCheckpoint(folder / "epochs", filename="{epoch}", save_top_k=1)  # removes the one before
    traffic = Traffic()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "broadcast", "all_gather", "all_gather_object", "all_to_all_single", "barrier"):
            patch.setattr(torch.distributed, name, traffic.counted(getattr(torch.distributed, name)))
        trainer, module = fit(trainer={"callbacks": [traffic], "max_epochs": 2}, **unequal)
    found["straight"], found["traffic"] = vector(module), traffic.batches
    validate = {"limit_val_batches": 1.0}
    options = {"enable_checkpointing": True, "callbacks": [saving, latest], **validate}
    trainer, module = fit(trainer=options, **unequal)
    found["validated"] = vector(module)
    found["validation"] = trainer.callback_metrics["validation"].item()
    with torch.no_grad():
        found["of agreed"] = nn.functional.cross_entropy(module.eval().net(INPUTS), LABELS).item()
    for step in (2, 4, 6):
        found[f"resumed {step}"] = vector(fit(trainer=validate, resume=folder / f"step={step}.ckpt", **unequal)[1])
    last = folder / "epochs" / "epoch=1.ckpt"
    found["epoch"] = vector(fit(trainer={"max_epochs": 3, **validate}, resume=last, **unequal)[1])
    found["three epochs"] = vector(fit(trainer={"max_epochs": 3, **validate}, **unequal)[1])
    found["loaded"] = vector(Module.load_from_checkpoint(last))
    torch.distributed.barrier()
    if eq.rank() == 0:
        os.remove(folder / "step=4.worker-2.pt")
    torch.distributed.barrier()
    found["missing"] = refusal(resume=folder / "step=4.ckpt", **unequal)
    found["other"] = refusal(resume=folder / "step=6.ckpt", sync=eq.sync.DPSGD(), **unequal)
    return found


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("four")
    return started(lambda: on_four(folder), 4), folder


def test_the_trainer_takes_the_steps_of_a_loop_by_hand(four: Any) -> None:
    """So there is no DDP, data is divided once, and there is a batch size per worker."""
    for row in four[0]:
        assert torch.equal(row["straight"], row["by hand"])


def test_nothing_is_sent_between_rounds(four: Any) -> None:
    for row in four[0]:
        assert [due for _, due in row["traffic"]] == [False, False, True, False, False, True, False, False]
        assert all(calls == 0 for calls, due in row["traffic"] if not due)
        assert all(calls > 0 for calls, due in row["traffic"] if due)


def test_the_agreed_model_is_validated_saved_and_held(four: Any) -> None:
    rows = four[0]
    assert all(torch.equal(row["validated"], rows[0]["validated"]) for row in rows)
    assert rows[0]["validation"] == pytest.approx(rows[0]["of agreed"], rel=1e-5)  # float32 means of batches
    assert torch.equal(rows[0]["loaded"], rows[0]["validated"])


@pytest.mark.parametrize("step", [2, 4, 6])
def test_the_trainer_resumes_to_the_same_bits(four: Any, step: int) -> None:
    """In the middle of the first epoch and of the second one (four batches each), and between them."""
    assert all(torch.equal(row[f"resumed {step}"], row["validated"]) for row in four[0])


def test_more_epochs_after_a_finished_run(four: Any) -> None:
    assert all(torch.equal(row["epoch"], row["three epochs"]) for row in four[0])


def test_removed_checkpoints_take_the_files_of_workers_with_them(four: Any) -> None:
    names = sorted(path.name for path in (four[1] / "epochs").iterdir())
    assert names == ["epoch=1.ckpt", *(f"epoch=1.worker-{rank}.pt" for rank in range(4))]


def test_what_cannot_be_resumed_is_said_on_all_workers(four: Any) -> None:
    for row in four[0]:
        assert "step=4.ckpt: the file of worker 2 on" in row["missing"]
        assert "sync" in row["other"]


# -- two workers -------------------------------------------------------------------------------------------------------
def on_two(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def both(name: str, hand: dict[str, Any], kind: Any = Module, **lightning: Any) -> None:
        found[name] = by_hand(**hand), vector(fit(kind(), **lightning)[1])

    detag: dict[str, Any] = {"sync": eq.sync.DeTAG(), "period": 1}
    both("manual", {"norm": nn.BatchNorm1d, **detag}, Manual, **detag)
    clipped = {"period": 1, "wire": eq.wire.Float32()}
    both(
        "clipped",
        {"accumulate": 3, "clip": 0.1, **clipped},
        trainer={"accumulate_grad_batches": 3, "gradient_clip_val": 0.1},
        **clipped,
    )
    both("bfloat16", {"cast": torch.bfloat16}, trainer={"precision": "bf16-mixed"})

    def scaler() -> Any:
        return torch.amp.GradScaler("cpu", init_scale=2.0**24 if eq.rank() else 1.0, growth_interval=2)

    plugin = MixedPrecision("16-mixed", "cpu", scaler())
    both("float16", {"cast": torch.float16, "scaler": scaler()}, trainer={"plugins": [plugin]})
    cd_grab = {"order": eq.order.CDGraB()}
    both("order", {"sampler": cd_grab}, **cd_grab)
    both("limited", {"limit": 4}, trainer={"limit_train_batches": 4})

    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    saved, module = fit(batch=GROWING, trainer={"enable_checkpointing": True, "callbacks": [saving]})
    found["sizes"] = saved.strategy._sampler.batch.sizes()
    resumed = fit(batch=GROWING, resume=folder / "step=5.ckpt")[1]
    found["adaptive"] = by_hand(sampler={"batch": GROWING}, ahead=True), vector(module), vector(resumed)
    found["fabric"] = by_hand(norm=nn.BatchNorm1d), *on_fabric(folder)
    found["refused"] = [
        refusal(Manual(optimizers=2)),
        refusal(period=eq.period.TotalSteps(4)),
        refusal(**cd_grab, trainer={"limit_train_batches": 3}),
    ]
    return found


def on_fabric(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    def loop(save: bool, resume: bool) -> torch.Tensor:
        fabric = L.Fabric(accelerator="cpu", devices=eq.world_size(), strategy=EquipoiseFabricStrategy())
        fabric.launch()
        plain = net(nn.BatchNorm1d)
        model, optimizer = fabric.setup(plain, torch.optim.Adam(plain.parameters(), lr=0.02))
        sampler = eq.Sampler(DATA, batch=8, seed=5)
        loader = DataLoader(DATA, batch_sampler=sampler, generator=torch.Generator())
        loader, whole = fabric.setup_dataloaders(loader, DataLoader(DATA, batch_size=4))
        assert len(whole) * eq.world_size() == len(DATA) // 4  # without an eq.Sampler, Fabric's division
        state = {"model": model, "optimizer": optimizer, "note": 0}
        choices = {"sampler": sampler, "period": 3, "deterministic": True, "seed": 5}
        with fabric.strategy.attach(model, optimizer, **choices) as together:
            if resume:
                fabric.load(folder / "fabric.ckpt", state)
                assert state["note"] == together.clock.step == 4
            for _ in sampler.epochs(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    with fabric.no_backward_sync(model, enabled=False):
                        fabric.backward(nn.functional.cross_entropy(model(x), y))
                    optimizer.step()
                    if save and together.clock.step == 4:
                        fabric.save(folder / "fabric.ckpt", state | {"note": 4})
        return vector(plain)

    straight = loop(save=True, resume=False)
    return straight, loop(save=False, resume=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    return started(lambda: on_two(folder), 2)


@pytest.mark.parametrize("name", ["manual", "clipped", "bfloat16", "float16", "order", "limited", "fabric", "adaptive"])
def test_as_by_hand(two: list[dict[str, Any]], name: str) -> None:
    for row in two:
        hand, *others = row[name]
        assert len(others) in (1, 2)
        assert all(torch.equal(other, hand) for other in others)


def test_batches_grew(two: list[dict[str, Any]]) -> None:
    assert max(two[0]["sizes"]) > GROWING.start


def test_what_lightning_cannot_do_is_refused_in_a_line(two: list[dict[str, Any]]) -> None:
    for optimizers, steps, epoch in [row["refused"] for row in two]:
        assert "returns 2 optimizers" in optimizers
        assert steps.startswith("TotalSteps lets workers take unequal numbers of steps")
        assert epoch.startswith("CDGraB learns from whole epochs")


def test_options_are_checked_where_they_are_given() -> None:
    with pytest.raises(UserError, match="EquipoiseStrategy has no option 'clip'; there are: sync, wire, period"):
        EquipoiseStrategy(clip=0.1)
