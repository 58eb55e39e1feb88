"""`equipoise topology`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from equipoise.cli.main import main

SVG = "{http://www.w3.org/2000/svg}"


def test_numbers_of_a_ring(capsys):
    assert main(["topology", "ring", "--workers", "16"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["lambda"] == "0.949253"
    assert lines["lambda_min"] == "-0.333333"
    assert lines["edges"].startswith("16 a round, 32 messages")
    assert lines["diameter"].startswith("8 rounds")
    assert lines["tenfold"].startswith("45 rounds")
    assert lines["D2"].startswith("not allowed")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ring --workers 16 --lazy true", "D2 * allowed"),
        ("ring --workers 16 --topology.slack 0.1", "slack=0.1"),
        ("base-k --workers 6 --peers 1", "lambda of 4 rounds *0: the exact mean"),
        ("one-peer --workers 6", "lambda of 3 rounds *0.216506"),
        ("matching --workers 5 --seed 3", "none: every round"),
        ("exponential --workers 8", "directed, doubly stochastic"),
        ("edges --links 0-1,1-2,2-0,2-3,3-0 --directed true", "push-sum methods only"),
        ("edges --links 0-1 --workers 2", "lambda *0"),
        ("star --workers 1", "0 rounds"),
    ],
)
def test_other_graphs(words, expected, capsys):
    assert main(["topology", *words.split()]) == 0
    assert re.search(expected, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rnig", "did you mean 'ring'"),
        ("ring --hub 3", "topology ring has no option 'hub'"),
        ("ring --workers 0", "at least 1"),
        ("ring --workers four", "whole number"),
        ("hypercube --workers 6", "use 4 or 8 workers"),
        ("edges --links 0-1,2-3", "not connected"),
        ("edges", "needs a graph"),
        ("ring --out ring.gif", ".svg or .png"),
        ("ring --out /no/such/place.svg", "cannot write"),
    ],
)
def test_errors_are_one_line(words, expected, capsys):
    assert main(["topology", *words.split()]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_needs_no_torch():
    code = "import sys; from equipoise.cli.main import main; main(['topology', 'torus']); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines()[-1] == "False"


def test_pictures_are_written(tmp_path, capsys):
    for file in ("a.svg", "b.PNG"):
        if file.endswith("PNG"):
            pytest.importorskip("matplotlib")
        assert main(["topology", "one-peer", "--workers", "5", "--out", str(tmp_path / file)]) == 0
    assert (tmp_path / "b.PNG").read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib(tmp_path, monkeypatch, capsys):
    for known in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["topology", "ring", "--out", str(tmp_path / "a.png")]) == 2
    assert "needs matplotlib: pip install 'equipoise[plot]'" in capsys.readouterr().err
