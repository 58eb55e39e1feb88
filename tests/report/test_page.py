import csv
import html
import io
import json
import re
from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.report import page, payload
from equipoise.report.page import write_page

from .runs import events, write


def test_nothing_is_fetched_and_names_are_escaped(tmp_path: Path) -> None:
    (path,) = write_page([write(tmp_path / "a & <b>")])
    assert path == tmp_path / "a & <b>" / "report.html"
    text = path.read_text()
    assert "<h1>a &amp; &lt;b&gt;</h1>" in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", text)
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "<svg" in text  # the ring
    assert path.stat().st_size < 2_500_000


def test_without_plotly_the_page_has_tables_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "library", lambda: None)
    (path,) = write_page([write(tmp_path / "a")])
    text = path.read_text()
    assert "pip install 'equipoise[pages]'" in html.unescape(text)
    assert "pip install 'equipoise[pages]'" in capsys.readouterr().err
    assert "<script" not in text
    assert '<th scope="row">loss, mean</th>' in text


def damage_tail(run: Path) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write('3\n{"event": "step", "worker"')


DAMAGED = {
    "not finished": lambda run: (run / "result.json").unlink(),
    "result.json cannot be read": lambda run: (run / "result.json").write_text("{"),
    "it is not the result of a run": lambda run: (run / "result.json").write_text("[]"),
    "no recipe.toml": lambda run: (run / "recipe.toml").unlink(),
    "not valid TOML": lambda run: (run / "recipe.toml").write_text("= 3"),
    "events.jsonl is empty": lambda run: (run / "events.jsonl").write_text(""),
    "2 lines are damaged": damage_tail,
    "the topology cannot be drawn": lambda run: (run / "recipe.toml").write_text(
        'workers = 2\n[topology]\nname = "moebius"\n'
    ),
}


@pytest.mark.parametrize("note", DAMAGED)
def test_damaged_files_become_notes_and_the_rest_is_shown(
    note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intact, run = write(tmp_path / "intact"), write(tmp_path / "run")
    DAMAGED[note](run)
    for runs in ([run], [intact, run]):
        assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0
        text = (tmp_path / "page.html").read_text()
        assert note in text
        assert note in capsys.readouterr().err
        # One file is damaged, so at least two of curves, results and recipe are left.
        assert ('id="data"' in text) + ("<h2>Final results" in text) + (
            "<h2>Recipe" in text or "recipes</h2>" in text
        ) >= 2
    assert 'id="data"' in text


def test_a_run_of_another_version_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = write_page([write(tmp_path / "a", events(timed=False), version="0.0.7")])
    assert "written by Equipoise 0.0.7" in path.read_text()
    assert "written by Equipoise 0.0.7" in capsys.readouterr().err
    assert "an older version wrote them" in path.read_text()


def test_folders_without_a_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "a")
    assert main(["report", str(good), str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    assert main(["report", str(good), "--format", "pdf"]) == 2
    assert main(["report", str(good), "--out", str(good / "events.jsonl" / "x.html")]) == 2


def test_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write(tmp_path / name)) for name in ("a", "b")]
    assert main(["report", *runs, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    losses = [row for row in rows if (row["run"], row["curve"], row["line"]) == ("b", "Training loss", "")]
    assert [(row["step"], row["samples"]) for row in losses] == [(f"{s}.0", f"{4 * s}.0") for s in (10, 20, 30, 40)]
    assert main(["report", *runs, "--format", "md"]) == 0
    assert "| a | 0.025 |" in capsys.readouterr().out
    assert main(["report", *runs, "--format", "json", "--out", str(tmp_path / "all.json")]) == 0
    assert [run["name"] for run in json.loads((tmp_path / "all.json").read_text())["runs"]] == ["a", "b"]


def test_the_page_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--model logistic --virtual --workers 2 --quiet --steps 12 --out run"
    assert main(["train", *small.split()]) == 0
    capsys.readouterr()
    assert main(["report", "run"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("written: run/report.html\n", "")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Training loss" in text
    assert "Classes per worker" in text


def test_runs_through_wires_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--model logistic --virtual --workers 2 --quiet --steps 12 --log-every 4"
    for wire in ("float32", "int8"):
        assert main(["train", *small.split(), "--wire", wire, "--out", wire]) == 0
    assert main(["report", "float32", "int8", "--out", "both.html"]) == 0
    text = (tmp_path / "both.html").read_text()
    for name, values in (("wire", ("float32", "int8")), ("wire.block", ("-", "256"))):
        cells = "".join(
            f'<td data-choice="{k}" data-title="{value}">{cell}</td>'
            for k, (value, cell) in enumerate(zip(("float32", "int8"), values, strict=True))
        )
        assert f'<th scope="row">{name}</th>{cells}' in text
    match = re.search(r'id="data">(.*?)</script>', text)
    assert match
    data = json.loads(match[1])
    assert "bytes" in [axis["key"] for axis in data["axes"]]
    plain, coded = (run["streams"][0]["bytes"] for run in data["choices"])
    assert len(plain) == 3
    assert all(3 < a / b < 4 for a, b in zip(plain, coded, strict=True))  # a quarter, and scales and weights


def test_every_run_has_a_colour_of_its_own() -> None:
    colours = payload.colours(40)
    assert len(set(colours)) == 40
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
