"""Functions of the user's own on the command line, and the weights that come out."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from .conftest import Command

MODULE = '''
import torch
from torch import nn

def load(size: int = 48, ways: str = "parts"):
    """Points of three classes."""
    x = torch.randn(size, 5, generator=torch.Generator().manual_seed(0))
    y = x[:, :3].argmax(1)
    return {"parts": ((x, y), (x[:12], y[:12])), "pair": (x, y), "dict": {"train": (x, y)}, "number": 3}[ways]

def make(data, width: int = 8):
    return nn.Sequential(nn.Linear(data.shape[0], width), nn.ReLU(), nn.Linear(width, data.outputs))

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x, y):
        return {"loss": nn.functional.cross_entropy(self.linear(x), y)}

def absolute(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, 3)).abs().mean()

def broken():
    raise RuntimeError("no such disk")

number = 3
'''
FLAGS = ("--virtual", "--workers", 2, "--quiet")


@pytest.fixture
def module(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    name = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def test_train_resume_and_export(command: Command, module: str, tmp_path: Path) -> None:
    given = ("--data", f"{module}:load", "--data.size", 96, "--model", f"{module}:make", "--model.width", 6)
    said = command("train", *given, "--epochs", 2, *FLAGS)
    assert said.code == 0, said.err
    folder = tmp_path / "runs" / "load-all-reduce-1"
    assert command("resume", folder, "--epochs", 3, "--quiet").code == 0
    weights = torch.load(folder / "model.pt", weights_only=True)
    assert weights["0.weight"].shape == (6, 5)
    said = command("export", folder, "--out", "model.safetensors")
    assert said.code == 0, said.err
    assert {k: v.tolist() for k, v in load_file("model.safetensors").items()} == {
        k: v.tolist() for k, v in weights.items()
    }
    assert command("compare", *given, "--vary", "period=1,2", "--epochs", 1, "--seeds", 1, "--out", "both").code == 0


@pytest.mark.parametrize("ways", ["pair", "dict"])
def test_what_data_may_return(command: Command, module: str, ways: str) -> None:
    assert command("train", "--data", f"{module}:load", "--data.ways", ways, "--steps", 1, *FLAGS).code == 0


def test_losses(command: Command, module: str, tmp_path: Path) -> None:
    losses = []
    for name, flags in (
        ("task", ("--model", "logistic")),
        ("function", ("--model", "logistic", "--loss", f"{module}:absolute")),
        ("model", ("--model", f"{module}:Own", "--loss", "model")),
    ):
        said = command("train", "--data", f"{module}:load", "--steps", 1, *flags, "--out", name, *FLAGS)
        assert said.code == 0, said.err
        losses.append(json.loads((tmp_path / name / "result.json").read_text())["models"]["mean"]["loss"])
    assert len(set(losses)) == 3


def test_the_centre_of_a_checkpoint_and_a_killed_run(command: Command, tmp_path: Path) -> None:
    assert command("train", "--sync", "easgd", "--steps", 4, "--model", "logistic", "--out", "a", *FLAGS).code == 0
    mean = torch.load("a/model.pt", weights_only=True)
    Path("a/model.pt").unlink()
    for of in ("mean", "centre"):
        assert command("export", "a", "--of", of).code == 0
    again, centre = (torch.load(f"a/{of}.pt", weights_only=True) for of in ("mean", "centre"))
    name = next(iter(mean))
    assert torch.allclose(mean[name], again[name])
    assert not torch.allclose(mean[name], centre[name])


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (("--data", "{m}:load", "--data.ways", "number"), "it must return a Dataset"),
        (("--data", "{m}:broken"), "raised RuntimeError: no such disk"),
        (("--data", "{m}:nothing"), "has no nothing"),
        (("--data", "{m}:number"), "not a function"),
        (("--data", "no_such_module:load"), "there is no such module here"),
        (("--data", "{m}:load", "--data.sizes", 3), "did you mean 'size'?"),
        (("--model", "{m}:absolute"), "needs --model.outputs and --model.targets"),
        (("--model", "{m}:load"), "it must return a torch.nn.Module"),
        (("--loss", "nonsense"), "takes package.module:function"),
        (("--sync", "{m}:load"), "unknown sync"),
    ],
)
def test_errors_name_the_function_and_the_fix(
    command: Command, module: str, flags: tuple[object, ...], fix: str
) -> None:
    said = command("train", *(str(f).format(m=module) for f in flags), "--steps", 1, *FLAGS)
    assert said.code == 2
    assert fix in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("nowhere",), "is not the folder of a run"),
        (("a", "--of", "best"), "takes mean or centre"),
        (("a", "--format", "onnx"), "takes pt or safetensors"),
    ],
)
def test_export_refuses_nonsense(command: Command, words: tuple[str, ...], fix: str) -> None:
    said = command("export", *words)
    assert said.code in (2, 4)
    assert fix in said.err
