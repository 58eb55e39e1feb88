"""`equipoise partition`: file, page, comparison, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli.main import main
from equipoise.report import figures


def run(*words: str) -> int:
    return main(["partition", *words])


def test_file_and_page_and_training_from_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "part.json"
    assert run("--workers", "3", "--speeds", "1,2,4", "--out", str(out), "--splits", "3", "--data.limit", "300") == 0
    table = json.loads(out.read_text())
    assert np.sort(np.concatenate(table["blocks"])).tolist() == list(range(300))
    assert table["speeds"] == [1.0, 2.0, 4.0]
    assert table["method"]["name"] == "submodular"
    assert np.abs(np.array(table["report"]["sizes"]) - 300 * np.array([1, 2, 4]) / 7).max() < 1
    page = (tmp_path / "part.html").read_text()
    assert page.count("<img") == 2
    assert "2.33 times shorter" in page
    words = ["--data.limit", "300", "--partition", "from-file", "--partition.path", str(out), "--batch", "proportional"]
    folder = tmp_path / "run"
    assert main(["train", *words, "--workers", "3", "--steps", "2", "--virtual", "--out", str(folder), "--quiet"]) == 0
    start = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    sizes = [e["examples"] for e in start if e["event"] == "start"]
    assert sizes == table["report"]["sizes"]


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "compare.html"
    words = ["compare", "stratified", "submodular:objective=herding", "--workers", "4", "--speeds", "1,1,2,4"]
    assert run(*words, "--splits", "3", "--page", str(page)) == 0
    text = capsys.readouterr().out
    lines = {line.split("  ")[0]: line.split()[-2:] for line in text.splitlines()}
    random, herding = map(float, lines["squared MMD / random"])
    assert herding < 0.5 < random
    assert page.read_text().count("<img") == 2


def test_without_matplotlib_the_page_has_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.report import partition_figures

    assert figures.available()
    monkeypatch.setattr(partition_figures, "available", lambda: False)
    page = tmp_path / "page.html"
    assert run("--partition", "iid", "--page", str(page), "--splits", "1") == 0
    assert "<img" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--speeds", "1,-2"], "at least 0"),
        (["--speeds", "1,nan"], "one number per worker"),
        (["--speeds", "0,0"], "all zero"),
        (["--speeds", "1,2", "--workers", "3"], "2 numbers for 3 workers"),
        (["--workers", "0"], "at least 1"),
        (["--partition", "submoduler"], "did you mean 'submodular'"),
        (["--partition.objectve", "herding"], "did you mean 'objective'"),
        (["--partition.speeds", "measured"], "give numbers here"),
        (["comparison"], "did you mean 'compare'"),
        (["compare"], "compare what"),
        (["compare", "iid:speeds"], "NAME:OPTION=VALUE"),
        (["compare", "iid", "stratified", "--out", "x.json"], "--out keeps one"),
        (["--out", "/nowhere/x.json"], "choose another file"),
        (["compare", "missing.json"], "does not exist"),
        (["--features", "nothing.npy"], "cannot be read"),
        (["--data", "digitz"], "did you mean 'digits'"),
    ],
)
def test_refusals(words: list[str], cause: str, capsys: pytest.CaptureFixture) -> None:
    assert run(*words, "--splits", "1") == 2
    assert cause in capsys.readouterr().err


def test_export(tmp_path: Path) -> None:
    import torch
    from torch.utils.data import TensorDataset

    from equipoise.core.errors import UserError
    from equipoise.partition.export import flower_partitioner, subsets

    data = TensorDataset(torch.arange(5))
    parts = subsets(data, [np.array([0, 3]), np.array([1, 2, 4])])
    assert [[int(row[0]) for row in part] for part in parts] == [[0, 3], [1, 2, 4]]
    with pytest.raises(UserError, match="other data"):
        subsets(data, [np.array([5])])
    try:
        import flwr_datasets  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="pip install flwr-datasets"):
            flower_partitioner([])
        return
    from datasets import Dataset

    partitioner = flower_partitioner([np.array([0, 3]), np.array([1, 2, 4])])
    partitioner.dataset = Dataset.from_dict({"x": [0, 10, 20, 30, 40]})
    assert partitioner.num_partitions == 2
    assert partitioner.load_partition(1)["x"][:] == [10, 20, 40]
