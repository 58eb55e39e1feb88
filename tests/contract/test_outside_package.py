"""examples/outside_package, installed without a network: listed, trained by name, and its own tests run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise.core.toml import read_toml
from equipoise.testing import PROMISES

PACKAGE = Path(__file__).parents[2] / "examples" / "outside_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and what an installer writes of its pyproject.toml."""
    folder = tmp_path_factory.mktemp("site-packages")
    project = read_toml(PACKAGE / "pyproject.toml")["project"]
    shutil.copytree(PACKAGE / "src" / "median_sync", folder / "median_sync")
    info = folder / f"median_sync-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["equipoise.methods"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[equipoise.methods]", *lines, ""]))
    return folder


def python(installed: Path, *arguments: str, cwd: Path) -> str:
    source = Path(equipoise.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{installed}"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed_trained_by_name_and_cited(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'workers = 3\nsteps = 6\nvirtual = true\nmodel = "logistic"\n'
        '[data]\nname = "synthetic"\nexamples = 60\n[sync]\nname = "median"\npull = 0.5\n'
        '[period]\nname = "every"\nsteps = 2\n'
    )
    script = """
from equipoise.cli.main import main
assert main(["list", "sync"]) == 0
assert main(["list", "sync", "median"]) == 0
assert main(["train", "recipe.toml", "--quiet", "--out", "run"]) == 0
assert main(["cite", "run"]) == 0
"""
    printed = python(installed, "-c", script, cwd=tmp_path)
    assert "  median " in printed
    assert "--sync.pull" in printed
    assert "in Python: median_sync.median.Median" in printed
    assert "@inproceedings{yin2018byzantine," in printed
    assert 'name = "median"' in (tmp_path / "run" / "recipe.toml").read_text()
    assert '"rounds": 3' in (tmp_path / "run" / "result.json").read_text()


def test_its_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    pytest_ = ["-m", "pytest", "-c", str(PACKAGE / "pyproject.toml"), "-p", "no:cacheprovider", str(PACKAGE / "tests")]
    assert f" {len(PROMISES['sync']) + 1} passed" in python(installed, *pytest_, cwd=tmp_path)
