"""A covering array: a small set of complete recipes in which every pair of methods that fits together occurs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from functools import cache

from equipoise.config import registry

AXES = ("sync", "topology", "order", "batch", "partition", "period")
Choice = tuple[str, str]  # axis, name

ADAPTIVE = ("norm-test", "inner-product", "augmented", "noise-scale", "cabs")
EVERY_STEP = ("all-reduce", "d2", "dsgt", "detag", "edm")
PHASES = ("defacto", "mg-dsgd")
STATIC_GRAPH = ("d2", "detag", "defacto", "mg-dsgd", "edm", "relay", "matcha")
CHANGING = ("one-peer", "base-k", "matching")
DIRECTED = ("exponential", "one-peer")


def _across(a: str, ones: tuple[str, ...], b: str, others: tuple[str, ...], why: str) -> dict[frozenset[Choice], str]:
    return {frozenset({(a, x), (b, y)}): why for x in ones for y in others}


# The pairs that make no sense, and a word of the reason that a user is given.
REFUSED: dict[frozenset[Choice], str] = {
    **_across("order", ("cd-grab",), "period", ("total-steps",), "own pace"),
    **_across("batch", ADAPTIVE, "period", ("total-steps",), "the same steps"),
    **_across("sync", EVERY_STEP, "period", ("post-local", "qsr", "growing"), "every step"),
    **_across("sync", EVERY_STEP + PHASES, "period", ("total-steps",), "must know before"),
    **_across("sync", STATIC_GRAPH, "topology", ("exponential",), "symmetric"),
    **_across("sync", STATIC_GRAPH, "topology", CHANGING, "same graph in every round"),
    **_across("sync", ("ad-psgd",), "topology", DIRECTED, "both ways"),
}


@cache
def gossips(sync: str) -> bool:
    return any(field.name == "topology" for field in dataclasses.fields(registry.get("sync", sync)))


def choices(axis: str) -> list[Choice]:
    return [(axis, name) for name in registry.names(axis)]


def together(a: Choice, b: Choice) -> bool:
    """Can the two stand in one recipe?"""
    if frozenset({a, b}) in REFUSED:
        return False
    named = dict((a, b))
    return not ("sync" in named and "topology" in named) or gossips(named["sync"])


def pairs() -> set[frozenset[Choice]]:
    """All pairs that make sense."""
    return {
        frozenset({a, b})
        for one, two in itertools.combinations(AXES, 2)
        for a in choices(one)
        for b in choices(two)
        if together(a, b)
    }


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
