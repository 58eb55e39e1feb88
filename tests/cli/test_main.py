import importlib
import subprocess
import sys

import pytest

import equipoise
from equipoise.cli.main import COMMANDS
from equipoise.config.registry import AXES, entries

from .conftest import Command


def without_torch(code: str) -> str:
    """Run code in a fresh interpreter and check that it does not import torch."""
    script = f"import sys\n{code}\nassert 'torch' not in sys.modules, 'torch was imported'\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list"], ["list", "sync"], ["--version"]])
def test_answers_without_torch(words: list[str]) -> None:
    out = without_torch(f"from equipoise.cli.main import main\nassert main({words!r}) == 0")
    assert out.strip()


def test_mistakes_are_found_without_torch() -> None:
    code = "from equipoise.cli.main import main\nassert main(['train', '--snyc', 'x', '--sync', 'no']) == 2"
    without_torch(code)
    without_torch("from equipoise import Recipe\nRecipe.from_dict({'sync': 'all-reduce', 'period': 1})")


def test_help_names_every_command_and_every_exit_code(command: Command) -> None:
    said = command()
    assert said.code == 0
    assert all(name in said.out for name in COMMANDS)
    assert "143" in said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(command: Command, name: str) -> None:
    said = command(name, "--help")
    assert said.code == 0
    assert f"equipoise {name}" in said.out


def test_unknown_command(command: Command) -> None:
    said = command("tarin")
    assert said.code == 2
    assert said.err.startswith("equipoise: unknown command 'tarin': did you mean 'train'?")


def test_list_shows_everything(command: Command) -> None:
    said = command("list")
    assert said.code == 0
    for entry in entries():
        assert entry.name in said.out
        assert entry.help in said.out
    assert command("list", "order").out.splitlines()[0] == "order"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.axis}-{entry.name}")
def test_list_explains_every_method(command: Command, entry: object) -> None:
    said = command("list", entry.axis, entry.name)  # type: ignore[attr-defined]
    assert said.code == 0, said.err
    assert "in Python: equipoise." in said.out


def test_list_shows_options(command: Command) -> None:
    said = command("list", "partition", "dirichlet")
    assert "--partition.alpha" in said.out
    assert "0.5" in said.out
    assert "smaller is more skewed" in said.out


def test_list_refuses_unknown_names(command: Command) -> None:
    assert "did you mean 'sync'?" in command("list", "snyc").err
    said = command("list", "sync", "al-reduce")
    assert (said.code, said.out) == (2, "")
    assert "did you mean 'all-reduce'?" in said.err


def test_doctor(command: Command) -> None:
    said = command("doctor")
    assert said.code == 0, said.out
    for word in ("python", "torch", "numpy", "cores", "memory", "disk", "GPUs", "gloo", "no problems"):
        assert word in said.out


def test_doctor_reports_a_failed_check_and_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.cli import doctor

    def broken() -> doctor.Finding:
        raise OSError("no such thing")

    broken.__name__ = "_disk"
    monkeypatch.setattr(doctor, "_disk", broken)
    monkeypatch.setattr(doctor, "_gloo", lambda: doctor.Finding("gloo", "works"))
    said = command("doctor")
    assert said.code == 2
    assert "problem: disk: OSError: no such thing" in said.out
    assert "gloo" in said.out
    assert said.out.endswith("1 problem\n")


def test_public_names() -> None:
    assert set(equipoise.__all__) <= set(dir(equipoise))
    assert callable(equipoise.spawn)
    importlib.import_module("equipoise.launch.start")  # the package must not hide the function of the same name

    assert callable(equipoise.spawn)
    for name in equipoise.__all__:
        assert getattr(equipoise, name) is not None
    for axis in AXES[:6]:
        assert getattr(equipoise, axis).__name__ == f"equipoise.{axis}"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = equipoise.nonsense
