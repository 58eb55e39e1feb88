from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.config.recipe import Choice, Recipe
from equipoise.config.registry import Entry, entries
from equipoise.core.errors import UserError
from equipoise.core.toml import read_toml
from equipoise.loop.from_recipe import assemble
from equipoise.loop.lr_schedule import factor
from equipoise.simulate.cluster import Cluster


def test_the_shapes_of_a_choice() -> None:
    recipe = Recipe.from_dict(
        {"sync": "all_reduce", "period": 8, "batch": [1, 2], "model": {"name": "mlp", "hidden": [8]}}
    )
    assert recipe.choices == {
        "sync": Choice("all-reduce", {}),
        "period": Choice("every", {"steps": 8}),
        "batch": Choice("fixed", {"size": [1, 2]}),
        "model": Choice("mlp", {"hidden": [8]}),
    }


def test_everything_has_a_default() -> None:
    found = Recipe().resolved()
    assert {
        axis: found[axis]["name"] for axis in ("partition", "order", "batch", "period", "sync", "data", "model")
    } == {
        "partition": "iid",
        "order": "reshuffle",
        "batch": "fixed",
        "period": "every",
        "sync": "all-reduce",
        "data": "digits",
        "model": "mlp",
    }
    assert (found["workers"], found["epochs"], found["lr"], found["virtual"]) == (4, 1.0, 0.1, False)
    assert found["batch"]["size"] == 32
    assert "topology" not in found


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ({"period": 4}, "sync.name", "periodic-average"),
        ({"period": {"steps": 1}}, "sync.name", "all-reduce"),
        ({"period": 4, "sync": "none"}, "sync.name", "none"),
        ({"period": 4, "sync": {"weights": "uniform"}}, "sync.name", "periodic-average"),
        ({"optimizer": "adamw"}, "lr", 0.001),
        ({"steps": 5}, "epochs", None),
        ({"data": "synthetic"}, "model.name", "logistic"),
        ({"data": "fashion-mnist"}, "model.name", "lenet"),
        ({"data": "cifar10"}, "model.name", "lenet"),
        ({"data": "text"}, "model.name", "transformer"),
        ({"data": "tsv"}, "model.name", "lstm"),
        ({"data": {"name": "tsv", "features": "bag"}}, "model.name", "logistic"),
        ({"budget": 90}, "budget", "90"),
        ({"weight-decay": 0.5}, "weight_decay", 0.5),
        ({"model": {"hidden": 7}}, "model.hidden", [7]),
        ({"data": {"name": "tsv", "text_column": 1}}, "data.text_column", "1"),
    ],
)
def test_defaults_follow_from_other_choices(table: dict[str, Any], key: str, value: Any) -> None:
    assert Recipe.from_dict(table).flat()[key] == value


def test_a_cluster_decides_the_workers(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[[workers]]\ncount = 3\n")
    found = Recipe.from_dict({"cluster": str(file)}).resolved()
    assert (found["workers"], found["virtual"], found["cluster"]) == (3, True, str(file))
    assert Recipe.from_dict({"cluster": str(file), "workers": 5}).resolved()["workers"] == 5
    assert Cluster.load(file).size == 3


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.axis}-{entry.name}")
def test_dump_and_load_every_method(entry: Entry, tmp_path: Path) -> None:
    table: dict[str, Any] = {entry.axis: entry.name}
    if entry.axis == "topology":
        table["sync"] = "d-psgd"
    recipe = Recipe.from_dict(table)
    file = tmp_path / "recipe.toml"
    recipe.dump(file)
    again = Recipe.load(file)
    assert again.resolved() == recipe.resolved()
    assert again.text() == file.read_text()
    assert recipe.resolved()[entry.axis]["name"] == entry.name
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_dump_and_load_every_setting(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[[workers]]\n")
    recipe = Recipe.from_dict(
        {
            **{
                "workers": 1,
                "virtual": True,
                "cluster": str(cluster),
                "deterministic": True,
                "timeout": 5,
                "epochs": 0.5,
            },
            **{"steps": 3, "samples": 100, "budget": "9s", "seed": 1, "micro": 2, "clip": 1.0, "autocast": "bfloat16"},
            **{
                "nonfinite": "skip",
                "buffers": "average",
                "drop_last": True,
                "optimizer": "sgd",
                "lr": 0.3,
                "sam": 0.05,
            },
            **{
                "momentum": 0.9,
                "nesterov": True,
                "weight_decay": 0.1,
                "schedule": "linear",
                "scaling": "sqrt",
                "warmup": 0.1,
                "out": "x",
            },
            **{
                "checkpoint_every": 7,
                "keep": 3,
                "evaluate_every": 2,
                "log_every": 5,
                "tensorboard": True,
                "track": "tensorboard",
                "slow": "2",
                "device": "cpu",
                "until": "loss=0.3",
                "loss": "model",
                "elastic": "1:8",
                "deadline": 5.0,
                "respawn": 1,
                "listen": "127.0.0.1:0",
                "snapshot_every": 3,
            },
        }
    )
    from equipoise.config.settings import SETTINGS

    assert set(recipe.settings) == set(SETTINGS)
    recipe.dump(tmp_path / "recipe.toml")
    again = Recipe.load(tmp_path / "recipe.toml")
    assert again.settings == recipe.settings
    assert set(read_toml(tmp_path / "recipe.toml")["versions"]) == {"equipoise", "torch", "numpy", "python"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"wrokers": 3}, "recipe: wrokers: unknown key: did you mean 'workers'?"),
        ({"sync": "detagg"}, "recipe: sync: unknown sync 'detagg'"),
        ({"sync": 4}, "recipe: sync = 4: takes a name, or a table"),
        ({"period": True}, "recipe: period = True: takes a name or a number"),
        ({"workers": "4"}, "recipe: workers = '4': takes a whole number"),
        ({"workers": True}, "recipe: workers = True: takes a whole number"),
        ({"lr": float("inf")}, "recipe: lr = inf: must be finite"),
        ({"virtual": 1}, "recipe: virtual = 1: takes true or false"),
        ({"buffers": "locl"}, "recipe: buffers = 'locl': did you mean 'local'?"),
    ],
)
def test_nonsense_is_refused_when_it_is_read(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.from_dict(table)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_are_refused_when_they_are_resolved() -> None:
    recipe = Recipe.from_dict({"partition": {"name": "dirichlet", "alhpa": 1}})
    with pytest.raises(
        UserError, match=r"unknown option partition\.alhpa of partition dirichlet: did you mean 'alpha'"
    ):
        recipe.resolved()
    with pytest.raises(UserError, match="alpha must be above"):
        Recipe.from_dict({"partition": {"name": "dirichlet", "alpha": -1}}).resolved()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.toml: no such file$"):
        read_toml(tmp_path / "no.toml")
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        read_toml(tmp_path / "bytes")
    (tmp_path / "bad.toml").write_text("a = 1\nb = = 2\n")
    with pytest.raises(UserError, match=r"bad\.toml: not valid TOML: .*line 2"):
        Recipe.load(tmp_path / "bad.toml")


def test_topology_reaches_the_sync() -> None:
    recipe = Recipe.from_dict({"sync": "d-psgd", "topology": "complete"})
    job, _ = assemble(recipe)
    assert type(job.sync.topology).__name__ == "Complete"  # type: ignore[attr-defined]
    assert recipe.resolved()["topology"]["name"] == "complete"
    assert "topology" not in recipe.resolved()["sync"]
    # Left out, it is the sync's own; dumped, it is there.
    assert Recipe.from_dict({"sync": "d-psgd"}).resolved()["topology"]["name"] == "ring"


def test_build_gives_what_run_job_takes() -> None:
    job, how = assemble(
        Recipe.from_dict({"workers": 3, "seed": 5, "clip": 2, "autocast": "bfloat16", "data": "synthetic"})
    )
    assert how == {"workers": 3, "virtual": False, "cluster": None, "deterministic": False, "timeout": 300.0}
    assert (job.seed, job.clip, job.autocast) == (5, 2.0, torch.bfloat16)
    assert job.fingerprint["data.name"] == "synthetic"


def test_the_seed_alone_decides_the_model() -> None:
    before = torch.get_rng_state()
    job, _ = assemble(Recipe.from_dict({"seed": 1}))
    torch.manual_seed(1234)
    first, second = (torch.cat([p.flatten() for p in job.model().parameters()]) for _ in range(2))
    assert torch.equal(first, second)
    other, _ = assemble(Recipe.from_dict({"seed": 2}))
    assert not torch.equal(first, torch.cat([p.flatten() for p in other.model().parameters()]))
    torch.set_rng_state(before)


@pytest.mark.parametrize(
    ("table", "cls", "group"),
    [
        ({}, torch.optim.SGD, {"lr": 0.1, "momentum": 0.0}),
        ({"momentum": 0.9, "nesterov": True, "lr": 1}, torch.optim.SGD, {"lr": 1.0, "momentum": 0.9, "nesterov": True}),
        ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"lr": 0.001, "weight_decay": 0.1}),
        ({"optimizer": "adamw"}, torch.optim.AdamW, {"lr": 0.001, "weight_decay": 0.0}),
    ],
)
def test_optimizers(table: dict[str, Any], cls: type, group: dict[str, Any]) -> None:
    job, _ = assemble(Recipe.from_dict(table))
    optimizer = job.optimizer([torch.nn.Parameter(torch.zeros(2))])
    assert type(optimizer) is cls
    assert group.items() <= optimizer.param_groups[0].items()


@pytest.mark.parametrize("kind", ["classify", "regress", "language"])
def test_the_loss_fits_the_task(kind: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {"name": "synthetic", "kind": kind}
    if kind == "language":
        (tmp_path / "words").write_text("the cat sat on the mat\n" * 50)
        data = {"name": "text", "path": str(tmp_path / "words"), "length": 5}
    job, _ = assemble(Recipe.from_dict({"data": data}))
    import numpy as np

    inputs, targets = job.train.batch(np.arange(3))
    loss = job.loss(job.model()(inputs), targets)
    assert loss.shape == ()
    loss.backward()


def test_schedules() -> None:
    assert factor("constant", 0.0, 0.7) == 1.0
    assert factor("constant", 0.5, 0.25) == 0.5
    assert factor("linear", 0.0, 0.25) == 0.75
    assert factor("linear", 0.5, 0.75) == 0.5
    assert factor("cosine", 0.0, 0.5) == pytest.approx(0.5)
    assert factor("cosine", 0.2, 1.0) == pytest.approx(0.0)


@pytest.mark.parametrize("length", [{"epochs": 2}, {"samples": 2 * 1438}, {"steps": 46}])
def test_a_schedule_falls_to_the_end_of_the_run_and_wastes_no_step(length: dict[str, Any], tmp_path: Path) -> None:
    from equipoise.loop.train import prepare, run_job

    table = {"schedule": "linear", "lr": 1.0, "warmup": 0.25, "log_every": 1, "workers": 2, "virtual": True}
    recipe = Recipe.from_dict(table | length | {"model": "logistic", "out": str(tmp_path)})
    job, how = assemble(recipe)
    prepare(job, False)
    rates = [e["lr"] for e in run_job(job, **how).events if e["event"] == "step" and e["worker"] == 0]
    assert len(rates) == 46
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0.85 < rates[top] <= 1.0
    assert abs(top - 11) <= 2
    assert 0 < rates[0] < 0.2
    assert 0 < rates[-1] < 0.05
