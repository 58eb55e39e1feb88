"""`equipoise watch`: the state of a run that goes on, and the page that is served meanwhile."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.cli.watch import runs_in
from equipoise.report.live import Watched, serve

FLAGS = ["--virtual", "--workers", "2", "--model", "logistic", "--data.limit", "200", "--steps", "12", "--quiet"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of which half of the events are written and no result."""
    folder = tmp_path / "run"
    assert main(["train", *FLAGS, "--log-every", "2", "--out", str(folder)]) == 0
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "rest").write_text("".join(lines[len(lines) // 2 :]))
    (folder / "events.jsonl").write_text("".join(lines[: len(lines) // 2]))
    (folder / "result.json").rename(folder / "later.json")
    return folder


def test_news_are_read_as_they_come(run: Path) -> None:
    watched = Watched(run)
    assert watched.read()
    assert not watched.read()
    before = max(int(row[1]) for row in watched.workers()[1:])
    assert "finished" not in watched.sentence()
    with (run / "events.jsonl").open("a") as file:
        file.write((run / "rest").read_text())
    (run / "later.json").rename(run / "result.json")
    assert watched.read()
    rows = watched.workers()[1:]
    assert [int(row[1]) for row in rows] == [12, 12]
    assert before < 12
    accuracy = json.loads((run / "result.json").read_text())["models"]["mean"]["accuracy"]
    assert f"accuracy {accuracy:.4f}" in watched.sentence()
    assert watched.sentence().endswith("finished")


def test_the_page_is_served_on_loopback_and_reloads_until_the_end(run: Path) -> None:
    server = serve([run], 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        first = urllib.request.urlopen(address).read().decode()
        assert "location.reload()" in first
        assert "going on: step" in first
        assert "crashed" not in first
        (run / "later.json").rename(run / "result.json")
        with (run / "events.jsonl").open("a") as file:
            file.write((run / "rest").read_text())
        last = urllib.request.urlopen(address).read().decode()
        assert "location.reload()" not in last
        assert "Final results" in last
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "../recipe.toml")
        assert server.server_address[0] == "127.0.0.1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_command(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["watch", str(run), "--once"]) == 0
    said = capsys.readouterr().out
    assert "examples/s" in said
    (run / "later.json").rename(run / "result.json")
    assert main(["watch", str(run)]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_on_a_terminal_no_word_is_broken(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["watch", str(run), "--once"]) == 0
    rows = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, rows)) <= 60
    assert any("examples/s" in row and "waiting" in row for row in rows)


def test_a_comparison_is_watched_run_by_run(run: Path, tmp_path: Path) -> None:
    for name in ("a/seed-0", "b/seed-1"):
        shutil.copytree(run, tmp_path / name)
    assert runs_in(tmp_path) == [tmp_path / "a/seed-0", tmp_path / "b/seed-1"]
    assert runs_in(tmp_path / "a") == [tmp_path / "a/seed-0"]
    assert runs_in(run) == [run]
    assert runs_in(tmp_path / "none") == [tmp_path / "none"]
