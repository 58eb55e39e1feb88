import json
from pathlib import Path

import pytest

from equipoise.cli import demo

from .conftest import Command


def test_demo_needs_no_arguments(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "demo.toml"
    text = demo.RECIPE.read_text()
    assert "epochs = 12" in text
    short.write_text(text.replace("epochs = 12", "epochs = 2"))
    monkeypatch.setattr(demo, "RECIPE", short)
    said = command("demo")
    assert said.code == 0, said.err
    folder = tmp_path / "runs" / "demo-1"
    assert {"recipe.toml", "events.jsonl", "result.json", "report.html"} <= {path.name for path in folder.iterdir()}
    assert "runs/demo-1/report.html" in said.out
    assert "equipoise train" in said.out
    result = json.loads((folder / "result.json").read_text())
    assert len(result["workers"]) == 4
    assert result["models"]["mean"]["accuracy"] > 0.8
