"""What pip installs: the wheel is the package with its data, the sdist has everything that tests and builds it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from equipoise.core.toml import read_toml

ROOT = Path(__file__).parents[1]
KEPT = ("bench", "docs", "examples", "src", "tests")  # folders of the repository

BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which a build replaces
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def repository() -> list[Path]:
    """Its files, whatever lies beside them."""
    files = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    for folder in KEPT:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    ignored = ("__pycache__", ".egg-info")
    return [path.relative_to(ROOT) for path in files if not any(part in str(path) for part in ignored)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel, built from a copy: a build leaves files behind."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for path in repository():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy / path)
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=copy, capture_output=True, check=True)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_the_sdist_is_the_repository(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[0]) as archive:
        names = {str(Path(*Path(member.name).parts[1:])) for member in archive.getmembers() if member.isfile()}
    expected = {str(path) for path in repository() if len(path.parts) > 1}
    assert {"Makefile", "constraints.txt", "README.md", "LICENSE", "mkdocs.yml", "tests/conftest.py"} <= names
    assert expected <= names


def test_every_extra_is_documented() -> None:
    extras = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "install.md").read_text(), re.M)
    assert {name.strip("` ") for row in rows for name in row.split(",")} == set(extras)


def test_the_wheel_is_the_package(packages: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(packages[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path)
    assert names == {str(path.relative_to("src")) for path in repository() if path.parts[0] == "src"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", "import equipoise; print(equipoise.__file__); from equipoise.cli.main import main; "
         "main(['list', 'sync'])"],
        cwd=tmp_path,  # before what is installed
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert str(tmp_path) in done.stdout.splitlines()[0]
    assert "all-reduce" in done.stdout
