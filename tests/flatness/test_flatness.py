"""Curvature against Hessians that are known, on models of all kinds."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.cli.main import main
from equipoise.core.errors import UserError
from equipoise.flatness import Surface, gradient_norm, largest_eigenvalue, measure, profile, trace
from equipoise.flatness.profile import filter_normalised

GENERATOR = torch.Generator().manual_seed(3)
INPUTS = torch.randn(300, 6, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(4, (300,), generator=GENERATOR)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4)).double()


def hessian(surface: Surface) -> torch.Tensor:
    columns = torch.eye(surface.size, dtype=torch.float64)
    return torch.stack([surface.times_hessian(column) for column in columns], 1)


def linear_regression() -> tuple[Surface, torch.Tensor]:
    """1/2 mean (w . x - y)^2 has the Hessian X^T X / n, whatever w."""
    model = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    targets = torch.randn(300, 1, generator=GENERATOR, dtype=torch.float64)
    surface = Surface(model, lambda out, y: 0.5 * (out - y).square().mean(), (INPUTS, targets), chunk=77)
    return surface, INPUTS.T @ INPUTS / 300


def test_hessian_of_a_regression_is_known() -> None:
    surface, exact = linear_regression()
    torch.testing.assert_close(hessian(surface), exact, rtol=1e-12, atol=1e-12)
    estimate = largest_eigenvalue(surface, tolerance=1e-10)
    largest = float(torch.linalg.eigvalsh(exact)[-1])
    assert estimate.value == pytest.approx(largest, rel=1e-9)
    assert estimate.error < 1e-8


def test_hessian_of_a_network_against_differences_of_gradients() -> None:
    surface = Surface(net(), nn.CrossEntropyLoss(), (INPUTS, LABELS), chunk=64)
    vector = torch.randn(surface.size, dtype=torch.float64, generator=GENERATOR)
    pieces, step = surface.like(vector), 1e-5
    with surface.moved(pieces, step):
        ahead = surface.gradient()
    with surface.moved(pieces, -step):
        behind = surface.gradient()
    torch.testing.assert_close(surface.times_hessian(vector), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)


def test_lanczos_and_hutchinson_against_the_full_matrix() -> None:
    surface = Surface(net(), nn.CrossEntropyLoss(), (INPUTS, LABELS))
    matrix = hessian(surface)
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    converged = largest_eigenvalue(surface, tolerance=1e-6)
    assert abs(converged.value - float(values[-1])) <= converged.error + 1e-12 < 1e-5
    rough = largest_eigenvalue(surface, most=4)
    assert float((values - rough.value).abs().min()) <= rough.error, "the residual holds an eigenvalue"
    assert rough.error > converged.error
    estimate = trace(surface, probes=200)
    assert abs(estimate.value - float(values.sum())) < 3 * estimate.error
    # Random signs see the diagonal exactly: what is left is twice the squared off-diagonal.
    off = (matrix - matrix.diag().diag()).square().sum()
    assert estimate.error == pytest.approx(float((2 * off / 200) ** 0.5), rel=0.3)


def test_chunks_and_examples_only_change_the_work() -> None:
    model = net()
    at_once, chunked = (Surface(model, nn.CrossEntropyLoss(), (INPUTS, LABELS), chunk=c) for c in (300, 37))
    assert at_once.loss() == pytest.approx(chunked.loss(), rel=1e-12)
    torch.testing.assert_close(at_once.gradient(), chunked.gradient(), rtol=1e-9, atol=1e-12)
    few = Surface(model, nn.CrossEntropyLoss(), (INPUTS, LABELS), examples=50, seed=4)
    again = Surface(model, nn.CrossEntropyLoss(), (INPUTS, LABELS), examples=50, seed=4)
    assert len(few.indices) == 50
    assert few.loss() == again.loss() != at_once.loss()


def test_nothing_of_the_model_changes() -> None:
    model = net().train()
    model(INPUTS)  # running statistics of its own
    nn.functional.cross_entropy(model(INPUTS), LABELS).backward()
    before, rng = copy.deepcopy(model), torch.get_rng_state()
    gradients = [p.grad.clone() for p in model.parameters()]
    flatness = measure(model, nn.CrossEntropyLoss(), (INPUTS, LABELS), probes=3, most=4, directions=2, points=3)
    assert model.training
    assert model[3].training
    assert torch.equal(rng, torch.get_rng_state())
    for (name, a), b in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, gradient)
    # Dropout is off: the loss is that of eval mode, and measuring again gives the same.
    assert flatness.loss == pytest.approx(nn.functional.cross_entropy(before.eval()(INPUTS), LABELS).item(), rel=1e-6)
    repeated = measure(model, nn.CrossEntropyLoss(), (INPUTS, LABELS), probes=3, most=4, directions=2, points=3)
    assert repeated.trace == flatness.trace


def test_gradient_norm_and_its_jackknife() -> None:
    surface, _ = linear_regression()
    estimate = gradient_norm(surface)
    assert estimate.value == pytest.approx(float(surface.gradient().norm()), rel=1e-12)
    # The error is that of another draw of as many examples: about the spread of norms over halves, over sqrt 2.
    halves = [
        gradient_norm(Surface(surface.model, surface.training_loss.loss, surface.source, examples=150, seed=s))
        for s in range(40)
    ]
    spread = np.std([h.value for h in halves])
    assert spread / 3 < estimate.error < 3 * spread


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    """One parameter and a loss that is linear in it: the gradient is a mean of numbers, and theory knows its error."""
    numbers = 5.0 + torch.randn(80, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = nn.Linear(1, 1, bias=False).double()
    surface = Surface(model, lambda outputs, targets: outputs.mean(), (numbers, torch.zeros(80)))
    parts = np.array_split(np.random.default_rng(0).permutation(surface.indices), 8)
    means = [float(numbers[part].mean()) for part in parts]
    estimate = gradient_norm(surface)
    assert estimate.value == pytest.approx(float(numbers.mean()))
    assert estimate.error == pytest.approx(np.std(means, ddof=1) / np.sqrt(8), rel=1e-9)


def test_directions_have_the_lengths_of_the_filters() -> None:
    surface = Surface(net(), nn.CrossEntropyLoss(), (INPUTS, LABELS))
    for p, d in zip(surface.parameters, filter_normalised(surface, seed=5), strict=True):
        if p.ndim < 2:
            assert not d.any()
        else:
            torch.testing.assert_close(d.flatten(1).norm(dim=1), p.flatten(1).norm(dim=1))


def test_scaling_layers_of_a_relu_net_changes_no_profile_but_the_eigenvalue() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)).double()
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled[0].weight.mul_(10.0)
        scaled[2].weight.div_(10.0)
    surfaces = [Surface(m, nn.CrossEntropyLoss(), (INPUTS, LABELS)) for m in (model, scaled)]
    curves = [profile(surface, directions=2, points=5) for surface in surfaces]
    np.testing.assert_allclose(curves[0].losses, curves[1].losses, rtol=1e-9)
    assert curves[0].losses[0, 2] == pytest.approx(surfaces[0].loss())
    values = [largest_eigenvalue(surface).value for surface in surfaces]
    assert values[1] > 5 * values[0]


def test_sharper_is_called_sharper() -> None:
    surfaces = []
    for scale in (1.0, 3.0):
        model = nn.Linear(6, 1, bias=False, dtype=torch.float64)
        nn.init.ones_(model.weight)
        targets = scale * INPUTS.sum(1, keepdim=True)
        surfaces.append(Surface(model, lambda out, y, s=scale: (s * out - y).square().mean(), (INPUTS, targets)))
    flat, sharp = ((largest_eigenvalue(s).value, trace(s).value, profile(s, directions=3).rise()[0]) for s in surfaces)
    assert np.divide(sharp, flat) == pytest.approx(9.0, rel=1e-6)


def test_frozen_and_unused_parameters() -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 4), "unused": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)}).double()
    model["frozen"].requires_grad_(False)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.parts["used"](x)

    surface = Surface(Net(), nn.CrossEntropyLoss(), (INPUTS, LABELS))
    assert surface.size == 28 + 6
    assert not surface.gradient()[28:].any()
    assert not surface.times_hessian(torch.ones(34, dtype=torch.float64))[28:].any()
    model.requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameter"):
        Surface(Net(), nn.CrossEntropyLoss(), (INPUTS, LABELS))
    with pytest.raises(UserError, match="odd number"):
        profile(surface, points=4)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    words = "train --model mlp --virtual --workers 2 --quiet --out run --steps 6 --sync lgrawa --period 3"
    assert main(words.split()) == 0
    few = ["--examples", "64", "--probes", "3", "--most", "3", "--directions", "2"]
    assert main(["flatness", "run", *few]) == 0
    output = capsys.readouterr().out
    for word in ("mean of step 6", "gradient norm", "largest eigenvalue", "trace", "±", "written: run/flatness.png"):
        assert word in output
    table = json.loads((tmp_path / "run" / "flatness.json").read_text())
    assert table["examples"] == 64
    assert np.shape(table["profile"]["losses"]) == (2, 11)
    assert main(["flatness", "run", *few, "--of", "centre"]) == 0
    centre = json.loads((tmp_path / "run" / "flatness.json").read_text())
    assert centre["loss"] != table["loss"]
    mistakes: list[tuple[list[Any], str]] = [
        (["run", "--of", "median"], "mean or centre"),
        (["run", "--probes", "0"], "--probes 0"),
        (["run", "--radius", "wide"], "--radius wide"),
        (["nowhere"], "nowhere is not the folder of a run"),
    ]
    for given, message in mistakes:
        assert main(["flatness", *given]) in (2, 4)
        assert message in capsys.readouterr().err


def test_command_measures_the_model_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean model, with BatchNorm as it was evaluated: the loss on all test data is that of the result."""
    monkeypatch.chdir(tmp_path)
    words = "train --model resnet --model.width 4 --virtual --workers 2 --quiet --out run --steps 4 --batch 16"
    assert main([*words.split(), "--buffers", "recompute"]) == 0
    few = "--examples 10000 --probes 1 --most 1 --directions 1 --on test"
    assert main(["flatness", "run", *few.split()]) == 0
    table = json.loads((tmp_path / "run" / "flatness.json").read_text())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert table["statistics"] == "recomputed on the training data"
    assert table["loss"] == pytest.approx(result["models"]["mean"]["loss"], rel=0.02)
