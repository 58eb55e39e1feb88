"""The candidates of a search: where it starts, and the neighbours of a candidate.

A choice that the user made is kept: `--sync diloco` searches periods, wires and learning rates of DiLoCo alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..config.build import objects
from ..config.fit import check_fit
from ..config.recipe import Recipe
from ..core.errors import UserError
from ..loop.from_recipe import settled
from ..simulate.cluster import Cluster

_UNEQUAL = 1.1  # rates that differ by less count as equal
LR_STEP = 4  # notches: a factor of 3.2
_NOTCHES = (1.0, 1.3, 1.8, 2.4, 3.2, 4.2, 5.6, 7.5)  # learning rates, in every decade
_LONGEST_PERIOD = 256
_LABELS = {"proportional": "batches by speed", "norm-test": "norm test"}
_WIRES = ("float32", "int8", "int4", "top-k", "power-sgd")

# Sync and its options, topology, periods, wires.
_STARTS: list[tuple[dict[str, Any], str | None, tuple[int, ...], tuple[str, ...]]] = [
    ({"name": "all-reduce"}, None, (1,), ("float32", "int8", "power-sgd")),
    ({"name": "periodic-average"}, None, (4, 16, 64), ("float32",)),
    ({"name": "periodic-average"}, None, (16,), ("int4", "top-k")),
    ({"name": "diloco", "lr": 1.0, "momentum": 0.5}, None, (16, 64), ("float32", "int4")),
    ({"name": "lgrawa"}, None, (32,), ("float32",)),
    ({"name": "d-psgd"}, "ring", (1, 8), ("float32",)),
    ({"name": "d-psgd"}, "base-k", (1,), ("float32",)),
    ({"name": "edm"}, "ring", (1,), ("float32",)),
]
_OTHER_STARTS = (None, (1, 16), ("float32",))  # of a sync that is not among them and that the user chose


class Candidate(NamedTuple):
    """Entries on top of the user's recipe: sync, period, wire, lr, and where they differ topology, batch, order."""

    table: dict[str, Any]

    @property
    def sync(self) -> str:
        return str(self.table["sync"]["name"])

    @property
    def name(self) -> str:
        """Short, and different for every candidate of a search."""
        table = self.table
        period, wire = table["period"], table["wire"]["name"]
        words = [self.sync, *(str(table[axis]["name"]) for axis in ("topology",) if axis in table)]
        words += [f"rounds {table['sync']['rounds']}"] if "rounds" in table["sync"] else []
        if period["name"] != "every":
            words.append(str(period["name"]))
        elif period["steps"] > 1:
            words.append(f"every {period['steps']}")
        words += [wire] if wire != "float32" else []
        words += [_LABELS.get(table[axis]["name"], table[axis]["name"]) for axis in ("batch", "order") if axis in table]
        return ", ".join([*words, f"lr {table['lr']:.2g}"])

    @property
    def structure(self) -> tuple[str, ...]:
        """What decides its time: everything but the learning rate, the batch and the order."""
        return tuple(str(self.table.get(axis)) for axis in ("sync", "topology", "period", "wire"))

    @property
    def but_rate(self) -> tuple[str, ...]:
        """Everything but the learning rate."""
        return (*self.structure, *(str(self.table.get(axis)) for axis in ("batch", "order", "partition")))

    def but(self, **changes: Any) -> Candidate:
        """This one with other entries; None removes one."""
        return Candidate({key: value for key, value in {**self.table, **changes}.items() if value is not None})


def pilots(recipe: Recipe, cluster: Cluster) -> list[Candidate]:
    """One candidate at several learning rates; none if the recipe has one."""
    if "lr" in recipe.settings:
        return []
    first = min(starts(recipe, cluster), key=lambda candidate: candidate.sync != "periodic-average")
    lr = first.table["lr"]
    return [first.but(lr=rate) for rate in (lr, *rates(lr, -LR_STEP, LR_STEP, 2 * LR_STEP))]


def rates(lr: float, *notches: int) -> list[float]:
    """Learning rates so many notches from the one nearest to this: two walks that meet have tried the same ones."""
    nearest = round(len(_NOTCHES) * math.log10(lr))
    places = [divmod(nearest + notch, len(_NOTCHES)) for notch in notches]
    return [float(f"{_NOTCHES[place]}e{decade}") for decade, place in places]


def starts(recipe: Recipe, cluster: Cluster, lr: float | None = None) -> list[Candidate]:
    """One candidate for each sync, topology, period and wire that the recipe leaves open."""
    base = {"lr": lr or recipe.plain()["lr"], **by_speed(recipe, cluster)}
    own = {axis: _given(recipe, axis) for axis in ("sync", "topology", "period", "wire") if axis in recipe.choices}
    name = own.get("sync", {}).get("name")
    rows = [row for row in _STARTS if name in (None, row[0]["name"])]
    found: dict[str, Candidate] = {}
    for sync, topology, periods, wires in rows or [(own["sync"], *_OTHER_STARTS)]:
        for period in periods:
            for wire in wires:
                table = {**base, "sync": sync, "period": {"name": "every", "steps": period}, "wire": {"name": wire}}
                table |= {"topology": {"name": topology}} if topology is not None else {}
                candidate = Candidate(table | own)
                found.setdefault(candidate.name, candidate)
                if period == periods[0]:
                    by_links = suited(candidate, recipe)
                    found.setdefault(by_links.name, by_links)
    return usable(found.values(), recipe)


def suited(candidate: Candidate, recipe: Recipe) -> Candidate:
    """With the rounds and the period that `train` would choose for the links; as it is where it would choose none."""
    left_open = recipe.merged(candidate.but(period=None).table)
    try:
        by_graph = objects(left_open)["sync"].suit(left_open.plain()["workers"], 1.0, 0.0)
        chosen = settled(left_open)
    except UserError:  # `usable` says why
        return candidate
    if by_graph is None or chosen is left_open:
        return candidate
    options, period = chosen.chosen("sync").options, chosen.chosen("period").options["steps"]
    if by_graph == ({"rounds": options["rounds"]}, period):
        return candidate
    return candidate.but(sync={**candidate.table["sync"], **options}, period={"name": "every", "steps": period})


def _given(recipe: Recipe, axis: str) -> dict[str, Any]:
    choice = recipe.chosen(axis)
    return {"name": choice.name, **choice.options}


def by_speed(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Blocks and batches in proportion to the workers' rates, where these differ and the user has not chosen."""
    slowest = min(cluster.rates)
    if max(cluster.rates) < _UNEQUAL * slowest or {"partition", "batch"} & {*recipe.choices}:
        return {}
    speeds = [round(rate / slowest, 3) for rate in cluster.rates]
    return {"partition": {"name": "iid", "speeds": speeds}, "batch": {"name": "proportional"}}


def followed(candidate: Candidate, recipe: Recipe, cluster: Cluster) -> Candidate:
    """A candidate whose blocks follow the workers' rates, on workers of other rates."""
    if "speeds" not in candidate.table.get("partition", {}):
        return candidate
    return candidate.but(**{"partition": None, "batch": None, **by_speed(recipe, cluster)})


def neighbours(candidate: Candidate, recipe: Recipe, cluster: Cluster, notches: int = LR_STEP) -> Iterator[Candidate]:
    """One choice changed: learning rate, period, wire, batch, partition or order. What the user chose stays."""
    table, fixed = candidate.table, {*recipe.choices, *recipe.settings}
    if "lr" not in fixed:
        yield from (candidate.but(lr=lr) for lr in rates(table["lr"], notches, -notches))
    steps = table["period"].get("steps", 1)
    if "period" not in fixed and 1 < steps <= _LONGEST_PERIOD:
        yield candidate.but(period={"name": "every", "steps": 2 * steps})
        yield candidate.but(period={"name": "every", "steps": steps // 2})
    if "wire" not in fixed:
        for wire in _WIRES:
            yield candidate.but(wire={"name": wire})
    if "batch" not in fixed and "partition" not in fixed:
        # Blocks that follow speeds need batches that do.
        yield candidate.but(batch={"name": "norm-test"}, partition=None)
        other = {"batch": None, "partition": None} if "batch" in table else by_speed(recipe, cluster)
        yield candidate.but(**other)
    if "order" not in fixed:
        yield candidate.but(order=None if "order" in table else {"name": "cd-grab"})


def usable(candidates: Iterable[Candidate], recipe: Recipe) -> list[Candidate]:
    """Those whose choices can be built and go together; the error of the first one if there are none."""
    good, problem = [], None
    for candidate in candidates:
        try:
            check(recipe.merged(candidate.table))
            good.append(candidate)
        except UserError as error:
            problem = problem or error
    if not good and problem is not None:
        raise problem
    return good


def check(recipe: Recipe) -> None:
    plain, methods = recipe.plain(), objects(recipe)
    axes = ("period", "sync", "order", "batch", "partition", "wire")
    check_fit(**{axis: methods[axis] for axis in axes}, workers=plain["workers"], drop_last=plain["drop_last"])
