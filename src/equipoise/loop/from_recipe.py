"""From a recipe to a job: the data, the model, the optimizer, and the methods."""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..comm.membership import Elasticity
from ..config import registry
from ..config.build import objects, takes_topology
from ..core.device import chosen_device
from ..core.errors import UserError
from ..core.extras import require
from ..core.random import rng_state, seed_torch, set_rng_state
from ..core.torchrun import rank
from ..core.user_function import imported, is_function
from ..data.base import LoadedData
from ..data.source import Source
from ..launch.start import check_cluster
from ..observe.tracker import chosen_trackers
from ..simulate.cluster import Cluster
from ..simulate.units import duration
from .job import Job, Length, check_slow, chosen_dtype
from .lr_schedule import LRSchedule
from .pace import pace
from .trial import try_functions
from .until import Until

if TYPE_CHECKING:
    from ..config.recipe import Recipe


def assemble(recipe: Recipe) -> tuple[Job, dict[str, Any]]:
    """Everything that decides the run, checked as far as possible without starting it."""
    plain, methods = recipe.plain(), objects(recipe)
    if "topology" in recipe.choices and not takes_topology(type(methods["sync"])):
        sync, topology = (registry.name_of(methods[axis]) for axis in ("sync", "topology"))
        warn(f"sync {sync} does not use a topology: --topology {topology} changes nothing")
    length = Length(
        plain["epochs"],
        plain["steps"],
        plain["samples"],
        duration(plain["budget"], "budget") if plain["budget"] is not None else None,
    )
    cluster = Cluster.load(plain["cluster"]) if plain["cluster"] is not None else None
    if plain["tensorboard"]:
        require("tensorboard", "tensorboard", "--tensorboard")
    trackers = chosen_trackers(plain["track"]) + chosen_trackers("tensorboard" if plain["tensorboard"] else None)
    optimizer, scheduler = optimizer_of(plain), scheduler_of(plain)
    loaded = methods["data"].load()
    job = Job(
        model=seeded(methods["model"], loaded, plain["seed"]),
        loss=loss_named(plain["loss"], loaded.task),
        perplexity=loaded.task == "language",
        train=Source(loaded.train),
        test=Source(loaded.test),
        length=length,
        optimizer=optimizer,
        scheduler=scheduler,
        until=Until.parse(plain["until"]) if plain["until"] is not None else None,
        **{axis: methods[axis] for axis in ("partition", "order", "batch", "period", "sync", "wire")},
        **{name: plain[name] for name in ("buffers", "seed", "drop_last", "micro", "clip", "sam", "nonfinite")},
        slow=factors(plain["slow"]) if plain["slow"] is not None else None,
        **{name: plain[name] for name in ("checkpoint_every", "keep", "evaluate_every", "log_every")},
        trackers=trackers,
        autocast=chosen_dtype(plain["autocast"]),
        device=chosen_device(plain["device"]),
        folder=Path(plain["out"]) if plain["out"] is not None else None,
        fingerprint=recipe.flat(),
        described=cluster is not None,
        elastic=elasticity_of(plain),
    )
    job.check_fit(plain["workers"])
    elastic = job.elastic is not None
    if cluster is not None:
        check_cluster(cluster, plain["workers"], virtual=plain["virtual"], elastic=elastic)
    if job.slow is not None:
        check_slow(job.slow, plain["workers"], elastic=elastic)
    if job.until is not None and loaded.task == "regress":
        job.until.check_measured(["loss"])
    job.model()  # a model that does not fit the data is refused here, once, and not by every worker
    try_functions(job, **{axis: str(registry.name_of(methods[axis])) for axis in ("data", "model")}, loss=plain["loss"])
    start = {name: plain[name] for name in ("workers", "virtual", "deterministic", "timeout")}
    return job, start | {"cluster": cluster}


def settled(recipe: Recipe) -> Recipe:
    """With the rounds and the period that suit the links of a described cluster, where the recipe has neither."""
    plain = recipe.plain()
    if plain["cluster"] is None or "period" in recipe.choices:
        return recipe
    if objects(recipe)["sync"].suit(plain["workers"], 1.0, 0.0) is None:
        return recipe
    job, how = assemble(recipe)
    chosen = pace(job, how["cluster"], how["workers"])
    if chosen is None:
        return recipe
    options, period = chosen
    return recipe.merged({"sync": options, "period": period})


def elasticity_of(plain: dict[str, Any]) -> Elasticity | None:
    if plain["elastic"] in (None, "none"):
        return None
    options = {name: plain[name] for name in ("deadline", "respawn", "listen", "snapshot_every")}
    return Elasticity.parse(plain["elastic"], plain["workers"], **options)


def seeded(model: Any, loaded: LoadedData, seed: int) -> typing.Callable[[], nn.Module]:
    """A factory that gives the same model on every worker and leaves the worker's own random stream alone."""

    def make() -> nn.Module:
        kept = rng_state()
        try:
            seed_torch(seed)
            built: nn.Module = model.build(loaded)
            return built
        finally:
            set_rng_state(kept)

    return make


def language_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[B, T, V] logits against [B, T] words."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


LOSSES: dict[str, typing.Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "classify": nn.functional.cross_entropy,
    "regress": nn.functional.mse_loss,
    "language": language_loss,
}


def loss_named(name: str | None, task: str) -> typing.Callable[..., torch.Tensor] | None:
    """The loss function of a recipe; None where the model returns its own."""
    if name is None:
        return LOSSES[task]
    if name != "model" and not is_function(name):
        raise UserError(f"--loss {name}: takes package.module:function, or model if the model returns its loss")
    return None if name == "model" else imported(name)


def optimizer_of(plain: dict[str, Any]) -> typing.Callable[[Any], torch.optim.Optimizer]:
    kind, lr, decay = plain["optimizer"], plain["lr"], plain["weight_decay"]
    if kind != "sgd":
        for name in ("momentum", "nesterov"):
            if plain[name]:
                raise UserError(f"--{name} belongs to sgd: leave it out with --optimizer {kind}")
        cls = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
        return lambda parameters: cls(parameters, lr=lr, weight_decay=decay)
    if plain["nesterov"] and not plain["momentum"]:
        raise UserError("--nesterov needs a momentum: add --momentum 0.9")
    momentum, nesterov = plain["momentum"], plain["nesterov"]
    return lambda parameters: torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )


def scheduler_of(plain: dict[str, Any]) -> typing.Callable[[torch.optim.Optimizer], Any] | None:
    kind, warmup, scaling = plain["schedule"], plain["warmup"], plain["scaling"]
    if kind == "constant" and not warmup and scaling == "none":
        return None
    return lambda optimizer: LRSchedule(optimizer, kind, warmup, scaling)


def factors(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--slow {text}: takes a number for each worker, such as 1,1,2,4") from None


def warn(text: str) -> None:
    if rank() == 0:
        print(f"equipoise: note: {text}", file=sys.stderr)
