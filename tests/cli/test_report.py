from pathlib import Path

import pytest

from equipoise.report import figures

from .conftest import SMALL, Command


def test_page_is_self_contained(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 12, "--out", "a & b", *SMALL).code == 0
    said = command("report", "a & b")
    assert said.code == 0, said.err
    page = (tmp_path / "a & b" / "report.html").read_text()
    assert "<h1>a &amp; b</h1>" in page
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert (tmp_path / "a & b" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_page_without_matplotlib(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)
    assert command("train", "--steps", 2, "--out", "run", *SMALL).code == 0
    said = command("report", "run")
    assert said.out == "written: run/report.html\n"
    assert "<img" not in (tmp_path / "run" / "report.html").read_text()


def test_page_of_a_run_that_has_not_ended(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 2, "--out", "run", *SMALL).code == 0
    (tmp_path / "run" / "result.json").unlink()
    assert command("report", "run").code == 0
    assert "equipoise resume run" in (tmp_path / "run" / "report.html").read_text()


def test_what_is_no_run(command: Command) -> None:
    said = command("report", "nowhere")
    assert said.code == 2
    assert "nowhere is not the folder of a run" in said.err
    assert command("report").code == 2
