import json
from pathlib import Path

import pytest

from equipoise.cli import demo

from .conftest import SMALL, Command


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


def test_the_page_of_a_run(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 12, "--out", "run", *SMALL).code == 0
    said = command("report", "run")
    assert (said.code, said.out, said.err) == (0, "written: run/report.html\n", "")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Training loss" in text
    assert "Which classes the workers own" in text
    assert command("report").code == 2
