from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from equipoise.cli.main import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in a temporary folder; returns the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


SMALL = ("--model", "logistic", "--virtual", "--workers", 2, "--quiet")
