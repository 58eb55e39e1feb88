from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import train
from equipoise.cli.flags import recipe_of, table_of
from equipoise.cli.parser import Parser
from equipoise.config.literal import literal
from equipoise.config.recipe import Choice, Recipe
from equipoise.core.errors import UserError

from .conftest import Command


def parse(*words: str) -> Recipe:
    parser = Parser(prog="equipoise train")
    train.configure(parser)
    return recipe_of(parser.parse(words), Recipe())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-1", -1),
        ("0.25", 0.25),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("true", True),
        ("false", False),
        ("1,2,4", [1, 2, 4]),
        ("64,", [64]),
        ("0.5,a", [0.5, "a"]),
        ("[[0, 1], [1, 2]]", [[0, 1], [1, 2]]),
        ('"4"', "4"),
        ("ring", "ring"),
        ("007", "007"),
        ("nan", "nan"),
        ("100 Mbit", "100 Mbit"),
        ("[broken", "[broken"),
        ("", ""),
    ],
)
def test_literals(text: str, value: Any) -> None:
    parsed = literal(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_dashes_and_underscores_are_the_same() -> None:
    dashes = parse("--drop-last", "--weight-decay", "0.1", "--data.test-path", "x", "--batch", "fixed")
    other = parse("--drop_last", "--weight_decay=0.1", "--data.test_path=x", "--batch=fixed")
    assert dashes == other
    assert dashes.settings == {"drop_last": True, "weight_decay": 0.1}
    assert dashes.choices["data"] == Choice(None, {"test_path": "x"})
    assert parse("--sync", "all_reduce") == parse("--sync", "all-reduce")


def test_dotted_options_in_any_order() -> None:
    first = parse("--partition.alpha", "0.1", "--partition", "dirichlet")
    assert first == parse("--partition", "dirichlet", "--partition.alpha=0.1")
    assert first.choices["partition"] == Choice("dirichlet", {"alpha": 0.1})
    assert parse("--data.noise", "-1").choices["data"].options == {"noise": -1}


def test_numbers_on_batch_and_period() -> None:
    recipe = parse("--batch", "64", "--period", "8")
    assert recipe.choices == {"batch": Choice("fixed", {"size": 64}), "period": Choice("every", {"steps": 8})}
    assert parse("--batch", "1,2,4").choices["batch"].options == {"size": [1, 2, 4]}


def test_booleans() -> None:
    assert parse("--virtual").settings == {"virtual": True}
    assert parse("--no-virtual").settings == {"virtual": False}
    assert parse("--no_drop_last").settings == {"drop_last": False}
    assert parse().settings == {}


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert parse("--samples", "1e6").settings == {"samples": 1_000_000}
    with pytest.raises(UserError, match=r"^--steps = 2.5: takes a whole number$"):
        parse("--steps", "2.5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "1"], "unknown flag --learning-rate: did you mean '--lr'?"),
        (["--nodes", "2"], "unknown flag --nodes: did you mean '--workers'?"),
        (["--snyc", "x"], "unknown flag --snyc: did you mean '--sync'?"),
        (["--snc.rounds", "4"], "unknown flag --snc.rounds: did you mean '--sync.rounds'?"),
        (["--sync", "al-reduce"], "--sync: unknown sync 'al-reduce': did you mean 'all-reduce'?"),
        (["--sync.rounds"], "--sync.rounds needs a value"),
        (["--sync.rounds", "--virtual"], "--sync.rounds needs a value"),
        (["--sync.name", "x"], "--sync.name: write --sync x"),
        (["--lr", "-0.1"], "--lr = -0.1: must be above 0"),
        (["--lr", "nan"], "--lr = 'nan': takes a number"),
        (["--lr"], "argument --lr: expected one argument"),
        (["--momentum", "1"], "--momentum = 1: must be below 1"),
        (["--workers", "0"], "--workers = 0: must be at least 1"),
        (["--seed", "-1"], "--seed = -1: must be at least 0"),
        (["--optimizer", "sgdd"], "--optimizer = 'sgdd': did you mean 'sgd'?"),
        (["--sync", "4"], "--sync = 4: takes a name"),
        (["--period", "true"], "--period = True: takes a name or a number"),
        (["a.toml", "b.toml"], "unrecognized arguments: b.toml"),
    ],
)
def test_mistakes(command: Command, words: list[str], message: str) -> None:
    said = command("train", *words)
    assert said.code == 2
    assert said.out == ""
    assert said.err.splitlines()[0].startswith(f"equipoise: {message}"), said.err


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('workers = 8\nlr = 0.5\nbatch = 64\n[partition]\nname = "dirichlet"\nalpha = 0.1\n')
    recipe = Recipe.load(file)
    flags = {"lr": 0.2, "partition": {"alpha": 3.0}, "batch": {"size": 16}}
    merged = recipe.merged(flags, "flags").resolved()
    assert (merged["workers"], merged["lr"], merged["momentum"]) == (8, 0.2, 0.0)
    assert merged["partition"] == {"name": "dirichlet", "alpha": 3.0}
    assert merged["batch"]["size"] == 16
    # A different method does not inherit the options of the one it replaces; the same method does.
    assert recipe.merged({"partition": "sorted"}).choices["partition"].options == {}
    assert recipe.merged({"partition": "dirichlet"}).choices["partition"].options == {"alpha": 0.1}


def test_every_setting_is_a_flag() -> None:
    from equipoise.config.settings import SETTINGS

    parser = Parser(prog="x")
    train.configure(parser)
    flags = set(parser._option_string_actions)
    assert {f"--{name.replace('_', '-')}" for name in SETTINGS} <= flags
    assert table_of(parser.parse(["--budget", "10m", "--out", "7"])) == {"budget": "10m", "out": "7"}
