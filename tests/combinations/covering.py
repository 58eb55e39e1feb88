"""A covering array: a small set of complete recipes in which every pair of methods that fits together occurs."""

from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.config import registry

from ..contract import toy

AXES = ("sync", "topology", "order", "batch", "partition", "period", "wire")
Choice = tuple[str, str]  # axis, name


@cache
def method(axis: str, name: str) -> Any:
    """What it declares: a file that it would read is gone."""
    with tempfile.TemporaryDirectory() as folder:
        return toy.make(axis, name, Path(folder))


def refusal(a: Choice, b: Choice) -> str:
    """A word of the reason for which the two are refused, from what they declare; nothing where they fit together."""
    one, two = sorted((a, b), key=lambda choice: AXES.index(choice[0]))
    axes = one[0], two[0]
    if axes in (("order", "period"), ("batch", "period")) and not method(*two).lockstep:
        if axes[0] == "order":
            return "lets each take its own" if method(*one).coordinated else ""
        return "the same steps" if method(*one).watches else ""
    if axes == ("order", "partition"):
        return "learns the order of a block" if method(*one).watches and method(*two).claimed else ""
    if axes == ("sync", "period"):
        needs, period = method(*one).needs(), method(*two)
        if not period.lockstep:
            return "must know before" if needs.every_step or needs.due_before_step else ""
        return "every step" if needs.every_step and not period.at_every_step() else ""
    if axes == ("sync", "topology") and gossips(one[1]):
        graph = method(*two).on(toy.WORKERS)
        needs = method(*one).needs()
        if needs.static_graph:
            return "same graph in every round" if graph.cycle != 1 else "" if graph.symmetric else "symmetric"
        return "undirected graph" if needs.undirected and not graph.symmetric else ""
    if axes == ("sync", "wire"):
        return "" if takes(method(*one), method(*two)) else "cannot send through wire"
    if axes == ("topology", "wire"):
        # So it is with every sync that takes a topology and more wires than casts.
        return "" if takes(eq.sync.DPSGD(method(*one)), method(*two)) else "changes from round to round"
    return ""


def takes(sync: Any, wire: Any) -> bool:
    wires, _ = sync.takes_wires(toy.WORKERS)
    return wire.plain or {"all": True, "dense": wire.dense, "casts": wire.memoryless, "none": False}[wires]


@cache
def gossips(sync: str) -> bool:
    return any(field.name == "topology" for field in dataclasses.fields(registry.get("sync", sync)))


def choices(axis: str) -> list[Choice]:
    return [(axis, name) for name in registry.names(axis)]


def together(a: Choice, b: Choice) -> bool:
    """Can the two stand in one recipe?"""
    if frozenset({a, b}) in refused():
        return False
    named = dict((a, b))
    return not ("sync" in named and "topology" in named) or gossips(named["sync"])


@cache
def refused() -> dict[frozenset[Choice], str]:
    """The pairs that make no sense, and a word of the reason that a user is given."""
    reasons = {frozenset({a, b}): refusal(a, b) for a, b in _across_axes()}
    return {pair: why for pair, why in reasons.items() if why}


def pairs() -> set[frozenset[Choice]]:
    """All pairs that make sense, but for a sync and its wire: contract/test_wires.py trains all of those."""
    return {frozenset({a, b}) for a, b in _across_axes() if together(a, b) and {a[0], b[0]} != {"sync", "wire"}}


def _across_axes() -> Iterator[tuple[Choice, Choice]]:
    for one, two in itertools.combinations(AXES, 2):
        yield from itertools.product(choices(one), choices(two))


def recipes() -> list[dict[str, str]]:
    """Greedy: begin with a missing pair, then give every other axis the name that adds the most missing pairs."""
    rng = random.Random(0)
    missing = sorted(pairs(), key=sorted)
    left = set(missing)
    rows = []
    for pair in missing:
        if pair not in left:
            continue
        chosen = sorted(pair)
        for axis in sorted((axis for axis in AXES if axis not in dict(chosen)), key=lambda _: rng.random()):
            able = [c for c in choices(axis) if all(together(c, other) for other in chosen)]
            if able:
                gain = {c: sum(frozenset({c, other}) in left for other in chosen) for c in able}
                chosen.append(max(able, key=lambda c: (gain[c], rng.random())))
        recipe = dict(chosen)
        if "sync" not in recipe or ("topology" in recipe) != gossips(recipe["sync"]):
            continue  # no sync goes with what was chosen so far: another recipe has to hold this pair
        rows.append({axis: recipe[axis] for axis in AXES if axis in recipe})
        left -= {frozenset(two) for two in itertools.combinations(chosen, 2)}
    return rows
