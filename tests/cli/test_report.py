from pathlib import Path

from .conftest import SMALL, Command


def test_the_page_of_a_run(command: Command, tmp_path: Path) -> None:
    assert command("train", "--steps", 12, "--out", "run", *SMALL).code == 0
    said = command("report", "run")
    assert (said.code, said.out, said.err) == (0, "written: run/report.html\n", "")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Training loss" in text
    assert "Which classes the workers own" in text
    assert command("report").code == 2
