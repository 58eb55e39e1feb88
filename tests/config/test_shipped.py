"""Recipes and clusters that come with the package: found by name, and the recommended ones are the measured winners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.config import shipped
from equipoise.config.recipe import Recipe
from equipoise.core.errors import UserError
from equipoise.core.toml import read_toml
from equipoise.simulate.cluster import Cluster

MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "five_users.json"
USERS = sorted(json.loads(MEASURED.read_text()))


def test_names() -> None:
    """A recipe without a measurement is not recommended."""
    assert shipped.names("cluster") == ["home", "many", "office", "private", "wan"]
    assert shipped.names("recipe") == USERS


@pytest.mark.parametrize("name", USERS)
def test_the_recommended_recipe_is_the_measured_winner(name: str) -> None:
    rows = json.loads(MEASURED.read_text())[name]["rows"]
    winner = min((row for row in rows if row["reached"] == row["seeds"]), key=lambda row: row["seconds"])
    assert rows[0] == winner
    table = read_toml(shipped.find("recipe", name))
    assert table.pop("workers") == Cluster.load(shipped.find("cluster", name)).size
    table.pop("cluster", None)
    assert table == {key: value for key, value in winner["recipe"].items() if key != "budget"}


@pytest.mark.parametrize("name", ["home", "office"])
def test_it_trains_and_can_be_changed(name: str, tmp_path: Path) -> None:
    words = ["train", name, "--steps", "2", "--data.limit", "200", "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--cluster", name]) == 0
    kept = Recipe.load(tmp_path / "run" / "recipe.toml")
    assert kept.chosen("sync").name == Recipe.load(name).chosen("sync").name
    assert kept.plain()["virtual"]


def test_own_files_go_first_and_nonsense_gets_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "office").mkdir()
    assert shipped.find("recipe", "office").parent == shipped.FOLDER, "a folder is no recipe"
    (tmp_path / "office").rmdir()
    (tmp_path / "office").write_text("lr = 0.5\n")
    assert Recipe.load("office").settings == {"lr": 0.5}
    with pytest.raises(UserError, match="did you mean 'home'"):
        shipped.find("recipe", "hone")
    with pytest.raises(UserError, match="no such file"):
        Recipe.load("gone.toml")
