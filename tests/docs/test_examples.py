"""Every file of examples/ runs as a script and prints what it promises."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def number(pattern: str, printed: str) -> float:
    match = re.search(pattern, printed)
    assert match, printed
    return float(match[1].replace(",", ""))


def own_loop(printed: str) -> None:
    assert number(r"accuracy of the mean model ([\d.]+)", printed) > 0.8
    assert number(r"after (\d+) rounds", printed) == 10


def train(printed: str) -> None:
    assert number(r"test accuracy of the mean model ([\d.]+)", printed) > 0.8
    assert number(r"([\d,]+) bytes sent", printed) > 0
    assert "@misc{zhang2019decentralized" in printed


def compare(printed: str) -> None:
    names = re.findall(r"^\| \d \| (.+?) \|", printed, re.M)
    assert names == ["Local SGD, H = 8, sizes by speed", "Local SGD, H = 8", "all-reduce"]  # each removes one cost


def custom_order(printed: str) -> None:
    assert number(r"loss of the mean model ([\d.]+)", printed) < 0.1


def lightning_trainer(printed: str) -> None:
    assert number(r"accuracy of the mean model ([\d.]+)", printed) > 0.8


def lightning_fabric(printed: str) -> None:
    assert number(r"accuracy of the mean model ([\d.]+)", printed) > 0.8


def islands(printed: str) -> None:
    assert number(r"accuracy of the mean model ([\d.]+)", printed) > 0.8
    assert number(r"after (\d+) rounds", printed) == 20
    assert "first weight (32, 10)" in printed


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (own_loop, islands, train, compare, custom_order, lightning_trainer, lightning_fabric)
}
NEEDS = {"lightning_trainer": "lightning", "lightning_fabric": "lightning"}
ELSEWHERE = {  # in the processes of their tests
    "ray_train": "tests/integrations/test_ray.py",
    "hf_trainer": "tests/integrations/test_huggingface.py",
    "accelerate_loop": "tests/integrations/test_accelerate.py",
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if path.stem in ELSEWHERE:
        assert path.name in (EXAMPLES.parent / ELSEWHERE[path.stem]).read_text()
        return
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason=f"{NEEDS[path.stem]} is not installed")
        # A process of its own: these fork, which is not safe once a test before has used threads of OpenMP.
        done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        CHECKS[path.stem](done.stdout)
        return
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    CHECKS[path.stem](capsys.readouterr().out)
