"""Names, and the classes behind them: from metadata, from `register`, from entry points, in stubs."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import equipoise as eq
from equipoise.cli.main import main
from equipoise.config import registry, stubs
from equipoise.core.errors import UserError


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_registered", {**registry._registered})
    monkeypatch.setattr(registry, "_broken", [])
    monkeypatch.setattr(registry, "_loaded", True)


@dataclass
class Never(eq.period.Period):
    """No round at all."""

    metadata: ClassVar[eq.Metadata] = eq.Metadata(name="never", help="no round at all")

    def init_state(self) -> None: ...

    def due(self, clock: object) -> bool:
        return False


# -- register -----------------------------------------------------------------------------------------------------
def test_a_registered_class_has_a_name_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert eq.register(Never) is Never
    assert eq.register(Never) is Never  # once more, as a module that is loaded twice does
    assert registry.get("period", "never") is Never
    assert "never" in registry.names("period")
    assert eq.Recipe.from_dict({"period": "never"}).resolved()["period"] == {"name": "never"}
    assert main(["list", "period", "never"]) == 0
    printed = capsys.readouterr().out
    assert "period never: no round at all" in printed
    assert f"in Python: {__name__}.Never" in printed


def test_a_taken_name_is_refused() -> None:
    @dataclass
    class Other(Never):
        metadata: ClassVar[eq.Metadata] = eq.Metadata(name="every", help="taken")

    with pytest.raises(UserError, match=r"period 'every' is equipoise.period.every:Every already: choose another"):
        eq.register(Other)
    assert registry.get("period", "every") is eq.period.Every


def test_what_cannot_be_registered_is_refused_with_the_fix() -> None:
    @dataclass
    class Nameless(eq.period.Period):
        def init_state(self) -> None: ...

        def due(self, clock: object) -> bool:
            return False

    with pytest.raises(UserError, match="add `metadata"):
        eq.register(Nameless)
    with pytest.raises(UserError, match="on no axis: derive it"):
        eq.register(int)


# -- entry points --------------------------------------------------------------------------------------------------
@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path in which a package with entry points is installed."""
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_loaded", False)
    yield tmp_path
    sys.modules.pop("thing", None)
    importlib.invalidate_caches()


METHOD = """
import equipoise as eq

class Lonely(eq.period.Every):
    metadata = eq.Metadata(name="{name}", help="of another package")

assert "every" in eq.config.registry.names("period")  # a module that asks the registry while it is loaded
"""


def declare(folder: Path, value: str, name: str = "lonely") -> None:
    (folder / "thing.py").write_text(METHOD.format(name=name))
    points = folder / "thing-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[{registry.GROUP}]\nlonely = {value}\n")


def test_an_entry_point_brings_its_method(installed: Path) -> None:
    declare(installed, "thing:Lonely")
    assert registry.get("period", "lonely").__module__ == "thing"
    assert "lonely" not in registry.exports("period")


@pytest.mark.parametrize(
    ("value", "name", "cause"),
    [
        ("thing:Missing", "lonely", "AttributeError"),
        ("nothing_like_it:Lonely", "lonely", "ModuleNotFoundError"),
        ("thing:Lonely", "qsr", "period 'qsr' is equipoise.period.qsr:QSR already"),
    ],
)
def test_a_broken_entry_point_is_one_clear_line_and_takes_nothing_else_away(
    installed: Path, caplog: pytest.LogCaptureFixture, value: str, name: str, cause: str
) -> None:
    declare(installed, value, name)
    with caplog.at_level(logging.WARNING, "equipoise"):
        assert registry.get("period", "every") is eq.period.Every
        assert registry.get("period", "qsr") is eq.period.QSR
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the entry point lonely = {value} (equipoise.methods) cannot be loaded: ")
    assert cause in line
    assert "uninstall the package" in line
    assert "\n" not in line
    with pytest.raises(UserError, match=r"unknown period 'lonely': .*cannot be loaded: .*uninstall"):
        registry.get("period", "lonely")


# -- stubs and exports -----------------------------------------------------------------------------------------------
def test_stubs_are_up_to_date() -> None:
    stale = [path for path, text in stubs.stubs().items() if not path.is_file() or path.read_text() != text]
    assert not stale, "run: python -m equipoise.config.stubs"


@pytest.mark.parametrize("axis", registry.AXES)
def test_a_stub_says_what_the_package_has(axis: str) -> None:
    """Its names are those of the package, and each is the class that the package gives."""
    package = importlib.import_module(f"equipoise.{registry.folder_of(axis).name}")
    names: dict[str, object] = {"__package__": package.__name__}
    exec(stubs.stub(axis), names)
    del names["__package__"], names["__builtins__"]
    assert set(names) >= set(registry.exports(axis))
    assert all(getattr(package, name) is value for name, value in names.items())


def test_a_new_file_is_a_new_method(tmp_path: Path) -> None:
    """A file in the folder of its axis is all that names, exports, stubs, citations and the list need."""
    package = tmp_path / "equipoise"
    source = Path(eq.__file__).parent
    package.mkdir()
    for path in source.iterdir():
        if path.name not in ("period", "__pycache__"):
            (package / path.name).symlink_to(path)
    (package / "period").mkdir()
    for path in (source / "period").glob("*.py*"):
        (package / "period" / path.name).symlink_to(path)
    (package / "config").unlink()
    (package / "config").mkdir()
    for path in (source / "config").glob("*.*"):
        (package / "config" / path.name).write_text(path.read_text())  # it finds the folders beside itself
    text = (source / "period" / "post_local.py").read_text()
    (package / "period" / "newest.py").write_text(text.replace("post-local", "newest").replace("PostLocal", "Newest"))
    check = """
import equipoise as eq
from equipoise.config import citations, registry, stubs
assert "newest" in registry.names("period")
assert eq.period.Newest().steps == registry.get("period", "newest")().steps
assert "Newest" in dir(eq.period)
assert "from .newest import Newest as Newest" in stubs.stub("period")
assert citations.keys_of({"period.name": "newest"}) == ["lin2020dont"]
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment, cwd=tmp_path)
