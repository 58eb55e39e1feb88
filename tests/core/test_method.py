from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from equipoise.comm.virtual import VirtualComm, World
from equipoise.core.context import Context, WorkerInfo
from equipoise.core.errors import UserError
from equipoise.core.method import Configurable, Method, option


@dataclass
class Inner(Configurable):
    depth: int = option(1, help="how deep", least=0)


@dataclass
class Options(Configurable):
    count: int = option(3, help="a whole number", least=1, most=9)
    rate: float = option(0.5, help="a number", above=0.0, below=1.0)
    many: int | list[int] = option(4, help="one or several", least=1)
    pair: tuple[float, ...] = option((1.0, 2.0), help="numbers")
    name: str = option("a", help="a word", choices=("a", "bee"))
    flag: bool = option(False, help="yes or no")
    maybe: int | None = option(None, help="a number or nothing")
    any: Any = option(None, help="anything")
    items: list[str] = option(["x"], help="words")
    table: dict = option({}, help="a table")
    inner: Inner = option(Inner(), help="another choice")

    def check(self) -> None:
        if self.flag and self.maybe is None:
            raise UserError("flag needs maybe: give it a number")


@dataclass
class Learner(Method):
    STATE = ("vector", "seen", "nested")
    start_at: int = option(0, help="first value")

    def init_state(self) -> None:
        self.vector = torch.full((3,), float(self.start_at))
        self.seen = 0
        self.nested = {"list": [torch.zeros(1)]}


def context(seed: int = 0, size: int = 1) -> Context:
    world = World(size)
    return Context(VirtualComm(world, world.workers[0]), worker=WorkerInfo(seed=seed))


# -- options ------------------------------------------------------------------------------------------------------
def test_defaults_are_valid_and_not_shared() -> None:
    one, two = Options(), Options()
    one.items.append("y")
    one.inner.depth = 5
    assert two.items == ["x"]
    assert two.inner == Inner(1)
    assert Options() == two


def test_built_again_from_its_repr() -> None:
    made = Options(count=5, many=[1, 2], pair=[3, 4], name="bee", inner=Inner(2), maybe=7)
    assert eval(repr(made)) == made


def test_options_lists_all_of_them() -> None:
    assert list(Options().options()) == [f.name for f in dataclasses.fields(Options)]
    assert Options(count=2).options()["count"] == 2


@pytest.mark.parametrize(
    ("given", "name", "kept"),
    [
        ({"rate": 0.25}, "rate", 0.25),
        ({"pair": [1, 2]}, "pair", (1.0, 2.0)),
        ({"many": 2}, "many", 2),
        ({"many": [2, 3]}, "many", [2, 3]),
        ({"many": (2, 3)}, "many", [2, 3]),
        ({"maybe": 4}, "maybe", 4),
        ({"maybe": None}, "maybe", None),
        ({"any": object}, "any", object),
        ({"count": 9}, "count", 9),
        ({"count": 1}, "count", 1),
    ],
)
def test_values_are_taken_as_their_hint_wants_them(given: dict[str, Any], name: str, kept: Any) -> None:
    value = getattr(Options(**given), name)
    assert value == kept
    assert type(value) is type(kept)


def test_an_int_becomes_a_float_where_a_float_is_wanted() -> None:
    @dataclass
    class Open(Configurable):
        rate: float = option(1.0, help="a number")

    assert type(Open(2).rate) is float


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"count": 10}, "count must be at most 9"),
        ({"count": 2.0}, "takes a whole number, not float"),
        ({"count": True}, "takes a whole number, not bool"),
        ({"count": "3"}, "takes a whole number, not str"),
        ({"count": None}, "takes a whole number, not NoneType"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": 1}, "rate must be below 1"),
        ({"rate": math.nan}, "not a number"),
        ({"rate": "fast"}, "takes a number, not str"),
        ({"many": 0}, "many must be at least 1"),
        ({"many": [4, 0]}, "many must be at least 1"),
        ({"many": [1.5]}, "takes"),
        ({"many": "4"}, "takes .*a whole number"),
        ({"pair": 3.0}, "takes"),
        ({"pair": [1.0, math.nan]}, "not a number"),
        ({"name": "be"}, "did you mean 'bee'.*known: a, bee"),
        ({"flag": 1}, "takes true or false, not int"),
        ({"items": "word"}, "takes"),
        ({"items": [3]}, "takes text"),
        ({"table": [1]}, "takes"),
        ({"inner": 3}, "takes Inner, not int"),
        ({"flag": True}, "flag needs maybe"),
    ],
)
def test_nonsense_is_refused_with_the_option_and_the_fix(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Options(**given)
    if given != {"flag": True}:
        assert f"Options({next(iter(given))}=" in str(caught.value)
    assert isinstance(caught.value, ValueError)


# -- binding and state --------------------------------------------------------------------------------------------
def test_bind_gives_each_worker_its_own_copy() -> None:
    choice = Learner(start_at=2)
    one, two = choice.bind(context()), choice.bind(context())
    one.vector += 1
    assert two.vector.tolist() == [2, 2, 2]
    assert not hasattr(choice, "vector"), "the choice itself stays a description"
    assert one.context is not two.context
    assert one == choice, "what it learns is no option"


def test_state_round_trip_is_a_copy_both_ways() -> None:
    one, two = Learner().bind(context()), Learner().bind(context())
    one.vector += 3
    one.seen = 4
    one.nested["list"][0] += 1
    state = one.state_dict()
    one.vector += 1
    one.nested["list"][0] += 1
    two.load_state_dict(state)
    assert two.vector.tolist() == [3, 3, 3]
    assert two.seen == 4
    assert two.nested["list"][0].item() == 1
    two.vector += 1
    two.nested["list"][0] += 1
    assert state["vector"].tolist() == [3, 3, 3]
    assert state["nested"]["list"][0].item() == 1


@pytest.mark.parametrize("state", [{}, {"vector": 1, "seen": 2}, {"vector": 1, "seen": 2, "nested": 3, "more": 4}])
def test_a_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"Learner keeps \['nested', 'seen', 'vector'\]"):
        Learner().bind(context()).load_state_dict(state)


def test_a_method_without_start_cannot_be_made() -> None:
    @dataclass
    class Incomplete(Method):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()


# -- the streams of a worker --------------------------------------------------------------------------------------
def test_streams_depend_on_seed_worker_and_purpose_alone() -> None:
    draws = {}
    for seed in (0, 1):
        for rank in range(3):
            here = WorkerInfo(rank, 2, seed)
            for purpose in ((1, 1), (1, 2), (2, 1)):
                draws[seed, rank, purpose] = tuple(here.rng(*purpose).integers(0, 2**63, 4))
                assert tuple(here.rng(*purpose).integers(0, 2**63, 4)) == draws[seed, rank, purpose]
    assert len(set(draws.values())) == len(draws)
