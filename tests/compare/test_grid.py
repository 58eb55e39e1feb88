from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.compare.grid import combinations, parse_vary, split
from equipoise.core.errors import UserError


def names(*varied: str, listed: bool = False, files: list[str] | None = None) -> list[str]:
    return [one.name for one in combinations(files or [], varied, {}, listed=listed)]


def test_values_with_options() -> None:
    values = parse_vary("sync=all-reduce,detag:rounds=4:gossip=none")
    assert [v.table for v in values] == [
        {"sync": {"name": "all-reduce"}},
        {"sync": {"name": "detag", "rounds": 4, "gossip": "none"}},
    ]
    assert [v.label for v in values] == ["all-reduce", "detag:rounds=4:gossip=none"]


def test_numbers_lists_settings_and_options() -> None:
    assert [v.table["batch"]["name"] for v in parse_vary("batch=8,[8,16]")] == [8, [8, 16]]
    assert [v.label for v in parse_vary("period=1,8")] == ["period 1", "period 8"]
    assert [v.table for v in parse_vary("lr=0.1,1e-2")] == [{"lr": 0.1}, {"lr": 0.01}]
    assert [v.table for v in parse_vary("sync.pull=0.5")] == [{"sync": {"pull": 0.5}}]
    assert [v.table for v in parse_vary("weight-decay=0")] == [{"weight_decay": 0}]
    assert [v.table for v in parse_vary("optimizer=sgd,adam")] == [{"optimizer": "sgd"}, {"optimizer": "adam"}]
    assert split("a, [b,c] ,d") == ["a", "[b,c]", "d"]


def test_a_grid_and_a_list() -> None:
    assert names("sync=easgd,lsgd", "period=2,4") == [
        "easgd, period 2",
        "easgd, period 4",
        "lsgd, period 2",
        "lsgd, period 4",
    ]
    assert names("sync=easgd,lsgd", "period=2,4", listed=True) == ["easgd, period 2", "lsgd, period 4"]


def test_recipes_with_something_varied(tmp_path: Path) -> None:
    for name, text in (("mine", "period = 4"), ("theirs", "sync = 'd-psgd'")):
        (tmp_path / f"{name}.toml").write_text(text)
    files = [str(tmp_path / "mine.toml"), str(tmp_path / "theirs.toml")]
    assert names(files=files) == ["mine", "theirs"]
    assert names("lr=0.1,0.2", files=files) == ["mine, lr 0.1", "mine, lr 0.2", "theirs, lr 0.1", "theirs, lr 0.2"]
    result = combinations(files, ["lr=0.1"], {"workers": 3, "lr": 0.5})
    assert [one.recipe.settings["lr"] for one in result] == [0.1, 0.1], "what is varied wins over flags"
    assert result[0].recipe.chosen("sync").name == "periodic-average"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("period = 4")
    assert names(files=[str(tmp_path / "run" / "recipe.toml")]) == ["run"]


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        (["sync"], "write a key and its values"),
        (["sync="], "write a key and its values"),
        (["snyc=a"], "did you mean 'sync'"),
        (["seed=1,2"], "use --seeds"),
        (["until=loss=1"], "one target"),
        (["cluster=a,b"], "one comparison for each value"),
        (["sync=detag:rounds"], "write detag:OPTION=VALUE"),
        (["sync=a,,b"], "missing between two commas"),
        (["sync=nope"], "unknown sync 'nope'"),
        (["lr=fast"], "takes a number"),
        (["period=2,2"], "appears twice"),
        (["lr.x=1"], "unknown 'lr'"),
    ],
)
def test_mistakes_are_refused_with_the_fix(varied: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        names(*varied)


def test_a_list_needs_pairs() -> None:
    with pytest.raises(UserError, match="sync has 2, period has 3: give the same number of each"):
        names("sync=easgd,lsgd", "period=1,2,3", listed=True)


def test_names_become_folders() -> None:
    (one,) = combinations([], ["sync=detag:rounds=4", "batch=[8,16]"], {})
    assert one.slug == "detag-rounds=4-batch-8-16"
