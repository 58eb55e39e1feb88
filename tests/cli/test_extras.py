"""The base package works without its extras; a missing one is one line with the command that installs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import equipoise
from equipoise.core import extras
from equipoise.core.errors import UserError

from .conftest import SMALL, Command

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys
for name in ("numba", "sklearn", "scipy", "plotly", "matplotlib", "PIL", "tensorboard", "threadpoolctl"):
    sys.modules[name] = None
from equipoise.cli.main import main
flags = "--data synthetic --virtual --workers 2 --steps 2 --quiet --out run".split()
assert main(["train", *flags]) == 0
assert main(["report", "run"]) == 0
assert main(["demo"]) == 2
"""


def test_training_needs_no_extra_and_the_demo_names_its_own(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("pip install 'equipoise[demo]'")


def test_tensorboard_names_its_extra(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    said = command("train", "--steps", 1, "--tensorboard", "--out", "run", *SMALL)
    assert said.code == 2
    assert said.err == "equipoise: --tensorboard needs tensorboard: pip install 'equipoise[tensorboard]'\n"


def test_every_extra_that_is_named_exists() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    declared = set(re.findall(r"^(\w+) = \[", text.split("[project.optional-dependencies]")[1].split("\n[")[0], re.M))
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'require\(\s*"[\w.]+",\s*"(\w+)"', sources)) | set(
        re.findall(r"'equipoise\[(\w+)\]'", sources)
    )
    assert {"tensorboard", "pages"} <= named
    assert named <= declared
    with pytest.raises(UserError, match=r"^pictures needs nothing_like_it: pip install 'equipoise\[plot\]'$"):
        extras.require("nothing_like_it", "plot", "pictures")


def test_all_files_name_one_version() -> None:
    assert f'\nversion = "{equipoise.__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == equipoise.__version__
    assert f"## {equipoise.__version__} " in (ROOT / "CHANGELOG.md").read_text()
