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


SCRIPT = """
import sys

import pytest

from equipoise.cli.main import main

assert main(["list", "sync"]) == 0
assert main(["list", "sync", "median"]) == 0
assert main(["train", "recipe.toml", "--quiet", "--out", "run"]) == 0
assert main(["cite", "run"]) == 0
sys.exit(pytest.main(["-c", sys.argv[1] + "/pyproject.toml", "-p", "no:cacheprovider", sys.argv[1] + "/tests"]))
"""


def test_it_is_listed_trained_by_name_and_cited_and_its_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'workers = 3\nsteps = 6\nvirtual = true\nmodel = "logistic"\n'
        '[data]\nname = "synthetic"\nexamples = 60\n[sync]\nname = "median"\npull = 0.5\n'
        '[period]\nname = "every"\nsteps = 2\n'
    )
    source = Path(equipoise.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{installed}"}
    command = [sys.executable, "-c", SCRIPT, str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    printed = done.stdout
    assert done.returncode == 0, printed + done.stderr
    assert "  median " in printed
    assert "--sync.pull" in printed
    assert "in Python: median_sync.median.Median" in printed
    assert "@inproceedings{yin2018byzantine," in printed
    assert 'name = "median"' in (tmp_path / "run" / "recipe.toml").read_text()
    assert '"rounds": 3' in (tmp_path / "run" / "result.json").read_text()
    assert f" {len(PROMISES['sync']) + 1} passed" in printed
