"""Functions of the user's own on the command line, and the weights that come out."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import equipoise as eq

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

class Rows(list):
    def __getitem__(self, index):
        raise OSError(f"no row {index}")

def rows():
    return Rows(range(8))

def unequal():
    return torch.zeros(5, 3), torch.zeros(4)

def untold():
    return [(torch.zeros(3), 1)] * 8

class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 3)

    def forward(self, x):
        return self.linear(x)

def raises(outputs, targets):
    raise KeyError("weights")

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


def test_files_of_the_users_own(command: Command) -> None:
    """Each kind trains with the model that fits it by default, is resumed, and refused in one line where it is bad."""
    rng = np.random.default_rng(0)
    Path("t.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i},{'uv'[i % 2]}\n" for i in range(12)))
    np.savez("t.npz", x=rng.standard_normal((12, 3)), y=rng.standard_normal(12))
    for label in "uv":
        Path("pictures", label).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 256, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"pictures/{label}/{i}.png")
    for name, where, model in (("csv", "t.csv", "mlp"), ("npy", "t.npz", "mlp"), ("images", "pictures", "lenet")):
        flags = ("--data", name, "--data.path", where, *(("--data.target", "y") if name == "csv" else ()))
        said = command("train", *flags, "--batch", 2, "--steps", 1, "--out", f"run-{name}", *FLAGS)
        assert said.code == 0, said.err
        assert f'name = "{model}"' in Path(f"run-{name}/recipe.toml").read_text()
        said = command("resume", f"run-{name}", "--steps", 2, "--quiet")
        assert said.code == 0, said.err
        said = command("train", *flags[:2], "--data.path", "nowhere", *flags[4:], *FLAGS)
        assert said.code == 2
        assert said.err.count("\n") == 1


def test_what_a_run_from_python_gives(command: Command) -> None:
    x = torch.randn(16, 3)
    how = {"workers": 2, "batch": 4, "steps": 2, "out": "run"}
    run = eq.train(nn.Linear(3, 1), nn.MSELoss(), (x, x[:, :1]), **how)
    assert re.fullmatch(r"Run\(2 steps, mean model \{'loss': [\d.]+\}, folder=run\)", repr(run))
    run.save("new/folder/model.safetensors")
    said = command("export", "run", "--out", "another/model.pt")
    assert said.code == 0, said.err
    exported = torch.load("another/model.pt", weights_only=True)
    for name, value in load_file("new/folder/model.safetensors").items():
        assert torch.equal(value, run.model.state_dict()[name])
        assert torch.equal(value, exported[name])


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
        (("--data", "{m}:broken"), "raised RuntimeError: no such disk ({m}.py, line 26)"),
        (("--data", "{m}:rows"), "its first example raised OSError: no row 0 ({m}.py, line 30)"),
        (("--data", "{m}:unequal"), "{m}:unequal returned 5 inputs and 4 targets"),
        (("--data", "{m}:untold"), "give the data set an attribute `targets`"),
        (("--model", "{m}:Wrong"), "({m}.py, line 47); a batch of 2 examples has inputs [2, 1, 8, 8] of float32"),
        (("--model", "{m}:Wrong", "--dry-run"), "model {m}:Wrong cannot be trained on data digits: RuntimeError"),
        (("--loss", "{m}:raises"), "loss {m}:raises cannot be trained on data digits: KeyError: 'weights' ({m}.py"),
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
    assert fix.format(m=module) in said.err
    assert "Traceback" not in said.err
    assert not list(Path().glob("runs/*/events.jsonl")), "a run that was refused leaves no folder that is in the way"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("nowhere",), "is not the folder of a run"),
        (("a", "--of", "best"), "takes mean or centre"),
        (("a", "--format", "onnx"), "takes pt or safetensors"),
        (("a", "--out", "model.onnx"), ".onnx cannot be written: use a name that ends in .pt or .safetensors"),
        (("a", "--format", "pt", "--out", "model.safetensors"), "do not belong together"),
        (("a", "--of", "centre"), "its model is not known here"),
    ],
)
def test_export_refuses_nonsense(command: Command, words: tuple[str, ...], fix: str) -> None:
    Path("a").mkdir()
    Path("a/events.jsonl").touch()
    said = command("export", *words)
    assert said.code in (2, 4)
    assert fix in said.err
