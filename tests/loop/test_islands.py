"""Islands: two of two ranks on gloo, DDP or FSDP2 inside, give what two plain workers give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.core.errors import CheckpointError, NonFinite, UserError
from equipoise.loop.islands import part_of_batch
from tests.loop.islands import (
    STEPS,
    Site,
    attached,
    batch_of,
    by_plain_workers,
    in_islands,
    outcome,
    plain_site,
    take_step,
    train,
    trained,
)

KINDS = ("fsdp", "ddp")
ROUNDING = 1e-11  # in float64, of numbers of size 1 after a few steps

RING = eq.topology.Ring()
FAMILIES: dict[str, dict[str, Any]] = {
    "all-reduce": {"sync": eq.sync.AllReduce(), "clip": 0.5},
    "periodic-average": {"sync": eq.sync.PeriodicAverage(state="average"), "period": 2},
    "diloco": {"sync": eq.sync.DiLoCo(), "period": 2},
    "d-psgd": {"sync": eq.sync.DPSGD(topology=RING)},
    "dsgt": {"sync": eq.sync.DSGT(topology=RING)},
    "easgd": {"sync": eq.sync.EASGD(), "period": 2},
    "mgrawa": {"sync": eq.sync.MGRAWA(), "period": 2},
    "lgrawa": {"sync": eq.sync.LGRAWA(source="last", prox=0.1), "period": 2},
    "lsgd": {"sync": eq.sync.LSGD(), "period": 2},
    "unequal": {"sync": eq.sync.KGT(topology=RING), "period": 2, "unequal": True},
}


def family(site: Site, choices: dict[str, Any]) -> dict[str, Any]:
    choices = dict(choices)
    if choices.pop("unequal", False):
        choices["share"] = (0.25, 0.75)[site.worker]
    return trained(site, choices)


# -- scenarios, each on every process ----------------------------------------------------------------------------------
def data_set() -> TensorDataset:
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True).sin() + x[:, :1])


def norm_test(site: Site) -> dict[str, Any]:
    """Batch sizes that follow from the noise of whole gradients."""
    data = data_set()
    rule = eq.batch.NormTest(start=4, most=16, eta=0.5)
    sampler = eq.Sampler(data, batch=rule, mesh=site.mesh)
    sizes = []
    with attached(site, sync=eq.sync.PeriodicAverage(), period=2, sampler=sampler) as (model, optimizer, together):
        for x, y in DataLoader(data, batch_sampler=sampler):
            sizes.append(sampler.batch.sizes())
            take_step(model, optimizer, together, x, y)
        return {"sizes": sizes, "noise": sampler.batch.noise(), **outcome(together)}


def one_nan(site: Site, policy: str, sync: Any, period: int) -> dict[str, Any]:
    """In step 3 one example of worker 1 is NaN; only one rank of its island sees it."""
    with attached(site, sync=sync, period=period, nonfinite=policy) as (model, optimizer, together):
        for step in range(STEPS):
            x, y = batch_of(site.worker, step)
            if (site.worker, step) == (1, 2):
                x[0] = math.nan
            take_step(model, optimizer, together, x[site.part], y[site.part])
        return outcome(together)


def lost_shard(site: Site) -> None:
    """The first element of worker 1's model is NaN, on one rank of its island."""
    with attached(site, sync=eq.sync.PeriodicAverage(), period=2) as (model, optimizer, together):
        train(site, model, optimizer, together, range(1))
        if site.worker == 1 and site.mesh.get_coordinate()[1] == 0:
            together.flat.gather()[0] = math.nan
            together.flat.scatter()
        together.loss = None
        optimizer.zero_grad()
        optimizer.step()


def evaluated(site: Site) -> dict[str, Any]:
    """Evaluation in the middle changes nothing: FSDP gathers parameters in a forward pass and keeps them."""
    with attached(site, sync=eq.sync.EASGD(), period=2, final="mean") as (model, optimizer, together):
        train(site, model, optimizer, together, range(3))
        metrics = together.evaluate(data_set(), nn.functional.mse_loss, ("local", "mean", "centre"))
        train(site, model, optimizer, together, range(3, STEPS))
        found = {"metrics": metrics, **outcome(together)}
    with torch.no_grad():
        return found | {"held": model(data_set()[:][0])}


def through_wire(site: Site) -> dict[str, Any]:
    return trained(site, {"sync": eq.sync.PeriodicAverage(), "period": 2, "wire": eq.wire.Int8()})


def resumed(site: Site, folder: Path) -> dict[str, Any]:
    """Six steps, and three of them again from a checkpoint."""
    data = data_set()

    def run(folder: Path | None, first: bool) -> dict[str, Any]:
        sampler = eq.Sampler(data, batch=8, mesh=site.mesh)
        choices = {"sync": eq.sync.LGRAWA(), "period": 2, "sampler": sampler, "log": folder}
        with attached(site, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), **choices) as (
            model,
            optimizer,
            together,
        ):
            start = together.resume() if folder is not None and not first else 0
            for step, (x, y) in enumerate(DataLoader(data, batch_sampler=sampler), start):
                take_step(model, optimizer, together, x, y)
                if folder is not None and first and step == 2:
                    together.checkpoint(wait=True)
                    break
            return {"start": start, **outcome(together)}

    found = {"whole": run(None, True), "begun": run(folder, True), "resumed": run(folder, False)}
    four = {"sync": eq.sync.LGRAWA(), "period": 2, "sampler": eq.Sampler(data, batch=8), "log": folder}
    with attached(plain_site(0), **four) as (_, _, together), pytest.raises(CheckpointError) as refused:
        together.resume()
    return found | {"refused": str(refused.value)}


def one_island(site: Site) -> dict[str, Any]:
    """All four processes: FSDP shards over two of them, and the other two hold the same."""
    inside = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("islands", "inside"))
    rank = dist.get_rank()
    alone = site._replace(
        worker=0, part=slice(2 * rank, 2 * rank + 2), mesh=mesh, wrap=lambda model: fully_shard(model, mesh=inside)
    )
    with attached(alone, clip=0.5) as (model, optimizer, together):
        train(alone, model, optimizer, together)
        state = together.model_state()
        whole = torch.cat([t.flatten() for t in state.values()]).norm()
        return {"model": state, "norms": (together.island.norm(together.flat.gather()), float(whole))}


def scenarios(site: Site, folder: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {name: family(site, choices) for name, choices in FAMILIES.items()}
    found["skip"] = one_nan(site, "skip", eq.sync.AllReduce(), 1)
    found["leave-out"] = one_nan(site, "leave-out", eq.sync.DiLoCo(), 2)
    found["evaluated"] = evaluated(site)
    found["wire"] = through_wire(site)
    found["norm-test"] = norm_test(site)
    if folder is not None:
        found["resumed"] = resumed(site, folder)
        found["one"] = one_island(site)
        found["lines"] = refusals(site)
    return found


def refusals(site: Site) -> dict[str, str]:
    """What is refused, with the line that says so."""
    lines = {}

    def refused(name: str, model: nn.Module, mesh: Any = site.mesh, **choices: Any) -> None:
        with pytest.raises(UserError) as error:
            eq.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), mesh=mesh, **choices)
        lines[name] = str(error.value)

    plain = nn.Linear(4, 4)
    refused("plain", plain)
    refused("world", DistributedDataParallel(plain))
    whole = init_device_mesh("cpu", (4,))
    refused("dimensions", nn.Linear(4, 4), whole)
    refused("no mesh", nn.Linear(4, 4), "cpu")
    sharded = fully_shard(nn.Sequential(nn.Linear(4, 4)), mesh=whole)
    refused("all shards", sharded)
    part = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(part[0], mesh=site.mesh["inside"])
    refused("part", part)
    good = fully_shard(nn.Sequential(nn.Linear(4, 4)), mesh=site.mesh["inside"])
    refused("without mesh", good, None)
    refused("total-steps", good, period=eq.period.TotalSteps(4))
    refused("elastic", good, elastic=2)
    refused("group", good, group=site.mesh.get_group(0))
    refused("scaler", good, scaler=torch.amp.GradScaler("cpu"))
    refused("sampler", good, sampler=eq.Sampler(data_set(), group=site.mesh.get_group(0)))
    for name, choices in {"order": {"order": eq.order.GraB()}, "queue": {"partition": eq.partition.Queue()}}.items():
        with pytest.raises(UserError) as error:
            eq.Sampler(data_set(), mesh=site.mesh, **choices)
        lines[name] = str(error.value)
    return lines


# -- the tests ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return by_plain_workers(lambda site: scenarios(site, None))[0]


@pytest.fixture(scope="module", params=KINDS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return in_islands(request.param, lambda site: scenarios(site, folder))


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert [(name, t.shape) for name, t in a.items()] == [(name, t.shape) for name, t in b.items()]
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("name", [*FAMILIES, "norm-test", "skip", "leave-out", "evaluated"])
def test_islands_are_as_plain_workers(name: str, plain: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    expected = plain[name]
    for rank in ranks:
        found = rank[name]
        assert apart(found["model"], expected["model"]) < ROUNDING
        assert found["consensus"] == pytest.approx(expected["consensus"], abs=ROUNDING)
        assert found["health"] == pytest.approx(expected["health"], abs=ROUNDING)
        assert (found["samples"], found["rounds"]) == (expected["samples"], expected["rounds"])


def test_workers_differ_so_that_equality_says_something(plain: dict[str, Any]) -> None:
    assert plain["easgd"]["consensus"] > 0.01
    models = [
        plain[name]["model"] for name in ("all-reduce", "diloco", "dsgt", "easgd", "mgrawa", "lgrawa", "lsgd", "skip")
    ]
    assert min(apart(a, b) for i, a in enumerate(models) for b in models[:i]) > 1e-4


def test_ranks_of_an_island_have_one_loss(plain: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """LSGD follows it, so ranks that disagree would follow different leaders."""
    losses = [rank["lsgd"]["loss"] for rank in ranks]
    assert losses[0] == losses[1] == pytest.approx(plain["lsgd"]["loss"], rel=1e-9)
    assert losses[2] == losses[3] != losses[0]


def test_norm_test_measures_whole_gradients(plain: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    expected = plain["norm-test"]
    assert len(set(map(tuple, expected["sizes"]))) > 1  # sizes have changed
    for rank in ranks:
        assert rank["norm-test"]["sizes"] == expected["sizes"]
        found, known = rank["norm-test"]["noise"], expected["noise"]
        assert (found.variance, found.square) == pytest.approx((known.variance, known.square), rel=1e-9)


def test_models_with_names_are_evaluated_and_held_whole(plain: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    expected = plain["evaluated"]
    for rank in ranks:
        for name, row in expected["metrics"].items():
            assert rank["evaluated"]["metrics"][name] == pytest.approx(row, abs=ROUNDING)
        assert float((rank["evaluated"]["held"] - expected["held"]).abs().max()) < ROUNDING


def test_shards_are_coded_by_themselves(plain: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    first = ranks[0]["wire"]
    assert first["consensus"] == 0.0  # the last step ends with a round, after which all islands hold the same
    assert all(apart(rank["wire"]["model"], first["model"]) == 0.0 for rank in ranks)
    assert apart(first["model"], plain["wire"]["model"]) < 0.01  # a few steps of int8 for weights of size 1


def test_a_loop_resumes_to_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["resumed"]
        assert (found["begun"]["start"], found["resumed"]["start"]) == (0, 3)
        assert apart(found["resumed"]["model"], found["whole"]["model"]) == 0.0
        assert apart(found["begun"]["model"], found["whole"]["model"]) > 0.0
        assert found["resumed"]["consensus"] == found["whole"]["consensus"]
        assert found["resumed"]["samples"] == found["whole"]["samples"]
        assert "islands: [[0, 1], [2, 3]] in the checkpoint, not set now" in found["refused"]


def test_shards_that_several_ranks_hold_count_once(ranks: list[dict[str, Any]]) -> None:
    with attached(plain_site(0), clip=0.5) as (model, optimizer, together):
        train(plain_site(0), model, optimizer, together)
    for rank in ranks:
        assert apart(rank["one"]["model"], model.state_dict()) < ROUNDING
        norm, expected = rank["one"]["norms"]
        assert norm == pytest.approx(expected, rel=1e-12)


def test_what_islands_cannot_do_is_refused_in_one_line(ranks: list[dict[str, Any]]) -> None:
    words = {
        "plain": "nothing makes one worker of them",
        "world": "DistributedDataParallel joins the ranks [0, 1, 2, 3], and the island of this process is",
        "dimensions": "mesh has 1 dimension: two are needed",
        "no mesh": "mesh must be a DeviceMesh",
        "all shards": "FSDP joins the ranks [0, 1, 2, 3]",
        "part": "parameter 1.weight is not sharded",
        "without mesh": "pass mesh=",
        "total-steps": "choose its own rounds",
        "elastic": "leave elastic out",
        "group": "leave group out",
        "scaler": "use bfloat16",
        "sampler": "pass mesh= to eq.Sampler too",
        "order": "GraB learns from gradients",
        "queue": "Queue lets every rank of an island claim",
    }
    for rank in ranks:
        assert set(rank["lines"]) == set(words)
        for name, text in words.items():
            assert text in rank["lines"][name]
            assert "\n" not in rank["lines"][name]


def test_a_lost_shard_stops_its_island_and_the_others_hear_why() -> None:
    """The rank that does not hold it must not wait for the one that does."""
    with pytest.raises(NonFinite, match="worker 1, step 2: the parameters are not finite"):
        in_islands("fsdp", lost_shard)


def test_parts_of_a_batch_are_equally_long_and_cover_it() -> None:
    class Inside:
        size = 3

    def parts(count: int) -> list[list[int]]:
        found = []
        for Inside.rank in range(3):
            found.append(part_of_batch(list(range(count)), Inside()))  # type: ignore[arg-type]
        return found

    assert parts(6) == [[0, 1], [2, 3], [4, 5]]
    assert parts(7) == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    assert parts(1) == [[0], [0], [0]]
    assert part_of_batch([4, 2], None) == [4, 2]


def test_virtual_workers_have_no_mesh() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="virtual workers have none"):
        eq.attach(model, optimizer, mesh=object())
