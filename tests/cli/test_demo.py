import json
from pathlib import Path

import pytest

from equipoise.cli import demo
from equipoise.core.toml import read_toml

from .conftest import Command


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's recipes, cut down to a fraction of the data and a target that is near."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for path in demo.RECIPES.glob("demo*.toml"):
        text = path.read_text()
        if path.name == "demo.toml":
            text = text.replace('data = "digits"', 'data = { name = "digits", limit = 300 }')
        (folder / path.name).write_text(text)
    monkeypatch.setattr(demo, "RECIPES", folder)
    monkeypatch.setattr(demo, "_QUICK", {"until": "accuracy=0.5", "epochs": 4})
    return tmp_path


def test_demo_needs_no_arguments_but_time(command: Command, tiny: Path) -> None:
    said = command("demo", "--quick")
    assert said.code == 0, said.err
    folder = tiny / "runs" / "demo-1"
    names = list(read_toml(demo.RECIPES / "demo-choices.toml"))
    assert names[0] == "baseline"
    assert names[-1] == "all together"
    found = json.loads((folder / "compare.json").read_text())
    assert {row["name"] for row in found["rows"]} == set(names)
    assert all(run["state"] == "done" for run in found["runs"]), "every choice of the tour trains"
    assert all(name in said.out for name in names)
    assert found["sentence"] in said.out
    assert "written: runs/demo-1/report.html" in said.out
    assert (folder / "report.html").stat().st_size > 10_000
    # The command that is suggested is one that can be typed.
    last = said.out.strip().splitlines()[-1]
    assert last.startswith("  equipoise compare --vary ")


def test_choices_differ_from_the_baseline_by_what_they_name() -> None:
    """No choice gets another learning rate, model, data set or first batch than the baseline."""
    for name, table in read_toml(demo.RECIPES / "demo-choices.toml").items():
        assert set(table) <= {"partition", "order", "batch", "period", "sync", "scaling"}, name
        sizes = table.get("batch", {"start": 16})
        assert sizes.get("start", sizes.get("mean")) == 16, name
