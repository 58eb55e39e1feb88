import json
from pathlib import Path

import pytest

from equipoise.cli import demo
from equipoise.core.toml import read_toml

from .conftest import Command


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipes of the demo with a fraction of the data and an easy target."""
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


def test_demo_compares_every_choice(command: Command, tiny: Path) -> None:
    said = command("demo", "--quick")
    assert said.code == 0, said.err
    folder = tiny / "runs" / "demo-1"
    names = list(read_toml(demo.RECIPES / "demo-choices.toml"))
    assert names[0] == "baseline"
    assert names[-1] == "all together"
    result = json.loads((folder / "compare.json").read_text())
    assert {row["name"] for row in result["rows"]} == set(names)
    assert all(run["state"] == "done" for run in result["runs"]), "every choice of the demo trains"
    assert all(name in said.out for name in names)
    assert result["sentence"] in said.out
    assert "written: runs/demo-1/report.html" in said.out
    assert (folder / "report.html").stat().st_size > 10_000
    page = (folder / "report.html").read_text()
    assert "times as fast as baseline" in page
    assert page.count('id="time-0-strips"') == 1, "the workers of the first choice over time"
    assert command("report", folder).code == 0
    assert "<h1>Which choice is fastest on four unequal workers?</h1>" in (folder / "report.html").read_text()
    last = said.out.strip().splitlines()[-1]
    assert last.startswith("  equipoise plan --cluster ")


def test_choices_differ_from_the_baseline_by_what_they_name() -> None:
    """All choices share the learning rate, model, data set and initial batch size of the baseline."""
    for name, table in read_toml(demo.RECIPES / "demo-choices.toml").items():
        assert set(table) <= {"partition", "order", "batch", "period", "sync", "scaling"}, name
        sizes = table.get("batch", {"start": 16})
        assert sizes.get("start", sizes.get("mean")) == 16, name
