"""Bars of long work."""

from __future__ import annotations

import sys

import pytest

from equipoise.core.progress_bar import bar, shown, tracked


def test_work_inside_other_work_shows_no_bar_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two bars at once are an error of rich."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    found = []
    with shown():
        for part in tracked("runs", ["a", "b"]):
            with bar("examples", 10) as advance:
                advance(10)
            found.append(part)
        with bar("epochs", 3) as advance:
            advance(3)
    written = capsys.readouterr().err
    assert found == ["a", "b"]
    assert "runs" in written
    assert "2/2" in written
    assert "epochs" in written
    assert "examples" not in written


def test_nobody_who_did_not_ask_sees_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(tracked("runs", range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""
