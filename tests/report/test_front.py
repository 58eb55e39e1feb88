"""What a page about a comparison tells, and in which order."""

from __future__ import annotations

import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli.main import main
from equipoise.compare.page import bars_of
from equipoise.compare.table import Criterion, Row, Spread, cells, ranked
from equipoise.loop.until import Until
from equipoise.report.front import Bar, Bars
from equipoise.report.page import write_page

from .runs import events, write
from .test_seeds import three_seeds

CLUSTER = """
[[workers]]
examples_per_second = 321
[[workers]]
examples_per_second = 654
[links]
bandwidth = "10 Mbit"
latency = "2 ms"
"""
TABLE = (["", "choice", "s"], [["1", "b, with <care>", "5"], ["2", "a", "9"], ["3", "c", "failed: so"]])
BARS = Bars(
    "Time to accuracy 0.9",
    "Mean over 3 seeds.",
    [Bar("b, with <care>", 5.0, 1.0, "5.0 ± 1.0"), Bar("a", 9.0, 1.0, "9.0 ± 1.0"), Bar("c", 0.0, 0.0, "failed", True)],
)


def comparison(folder: Path) -> Path:
    """The page of two choices with three seeds each; a third has failed."""
    runs = three_seeds(folder, "b", "a")
    (folder / "cluster.toml").write_text(CLUSTER)
    for run in runs:
        recipe = run / "recipe.toml"
        lr = 0.1 if run.parent.name == "a" else 0.2
        recipe.write_text(recipe.read_text().replace("lr = 0.1", f'lr = {lr}\ncluster = "elsewhere/cluster.toml"'))
    (path,) = write_page(
        runs,
        folder / "report.html",
        title="Which?",
        sentence="b wins.",
        table=TABLE,
        choices=["b, with <care>"] * 3 + ["a"] * 3,
        times=BARS,
        command="equipoise train 'my runs/recipe.toml'",
    )
    return path


def data_of(text: str) -> dict[str, Any]:
    match = re.search(r'id="data">(.*?)</script>', text)
    assert match
    data: dict[str, Any] = json.loads(match[1].replace("<\\/", "</"))
    return data


class Outline(HTMLParser):
    """Headings, pictures and controls of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "plot" in (own.get("class") or "").split() or own.get("role") == "img":
            self.pictures.append(own)


def test_the_answer_comes_first(tmp_path: Path) -> None:
    text = comparison(tmp_path).read_text()
    shown = html.unescape(text)
    order = [
        '<p class="sentence">b wins.',
        "equipoise train 'my runs/recipe.toml'",
        '<button id="copy"',
        "<h2>Time to accuracy 0.9</h2>",
        "All numbers",
        "<h2>Curves</h2>",
        'id="plot-0"',
        "<h2>Time of the workers</h2>",
        "<h2>Cluster</h2>",
        "<summary><h2>Final results</h2>",
    ]
    places = [shown.index(words) for words in order]
    assert places == sorted(places)
    assert "321 examples/s" in text, "the cluster is beside the runs"
    assert "10 Mbit, 2 ms" in text
    assert html.escape("b, with <care>") in text
    assert "<care>" not in text.split('id="data"')[0]


def test_names_of_bars_tables_and_curves_are_equal_and_go_together(tmp_path: Path) -> None:
    text = comparison(tmp_path).read_text()
    data = data_of(text)
    names = [choice["name"] for choice in data["choices"]]
    assert names == ["b, with <care>", "a"]
    for number, name in enumerate(names):
        mark, shown = f'data-choice="{number}"', html.escape(name)
        assert f'<div class="bar" {mark}><span class="name">{shown}</span>' in text
        assert f"<tr {mark}><td>{number + 1}</td>" in text.replace(' data-title="choice"', "")
        assert f'<tr {mark}><th scope="row">{shown}, seed 2</th>' in text
        assert f'<th scope="col" {mark}>{shown}</th>' in text
        assert f'<button data-only="{number}" aria-pressed="false" aria-label="only {shown}">' in text
        assert f"--colour:{data['colours'][number]}" in text
    assert '<div class="bar"><span class="name">c</span>' in text, "it has no curves"


def test_headings_are_in_order_and_pictures_have_words(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    for path in (comparison(tmp_path / "c"), *write_page([write(alone, events())])):
        outline = Outline(path.read_text())
        assert outline.headings[0] == 1
        assert outline.headings.count(1) == 1
        steps = zip(outline.headings, outline.headings[1:], strict=False)
        assert all(after <= before + 1 for before, after in steps)
        assert len(outline.pictures) >= 10
        assert all(own.get("role") == "img" and len(own.get("aria-label") or "") > 8 for own in outline.pictures)


def row(name: str, time: float, deviation: float, reached: int = 3) -> Row:
    return Row(
        name,
        3,
        reached=reached,
        time=Spread(time, deviation, 3),
        bytes=Spread(1.0, 0.0, 3),
        metric=Spread(0.8, 0.1, 3),
        goodput=Spread(100 / time, math.nan, 1),
    )


@pytest.mark.parametrize("measure", ["simulated_seconds", "samples"])
def test_bars_have_the_order_and_the_numbers_of_the_table(measure: str) -> None:
    criterion = Criterion(measure, Until("accuracy", 0.9), "accuracy")
    rows = ranked([row("slow", 8.0, 1.0), row("fast", 4.0, 0.5), row("none", 9.0, 0.0, 0), Row("bad", 3)], criterion)
    bars = bars_of(rows, criterion)
    assert bars is not None
    assert (
        bars.title
        == {
            "simulated_seconds": "Time to accuracy 0.9, simulated seconds",
            "samples": "Examples to accuracy 0.9",
        }[measure]
    )
    _, body = cells(rows, criterion)
    assert [bar.name for bar in bars.rows] == [line[1] for line in body] == ["fast", "slow", "none", "bad"]
    assert [bar.text for bar in bars.rows[:3]] == [line[2] for line in body[:3]]
    assert [(bar.value, bar.spread, bar.missed) for bar in bars.rows] == [
        (4.0, 0.5, False),
        (8.0, 1.0, False),
        (9.0, 0.0, True),
        (0.0, 0.0, True),
    ]
    by_metric = bars_of(rows[:2], Criterion(measure, None, "accuracy"))
    assert by_metric is not None
    assert (by_metric.title, by_metric.rows[0].value) == ("Final accuracy", 0.8)
    by_goodput = bars_of(rows[:2], Criterion(measure, None, "accuracy", "goodput"))
    assert by_goodput is not None
    assert (by_goodput.rows[0].value, by_goodput.rows[0].spread) == (25.0, 0.0)
    assert bars_of(rows[:1], criterion) is None


def test_a_comparison_and_a_report_on_it_give_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    small = "--model logistic --data.limit 200 --lr 0.5 --cluster cluster.toml --quiet --jobs 1 --seeds 2 --epochs 4"
    words = f"compare --vary sync=all-reduce,none {small} --until accuracy=0.3 --out c"
    assert main(words.split()) == 0
    assert "written: c/recipe.toml" in capsys.readouterr().out
    first = Path("c/report.html").read_text()
    assert "equipoise train c/recipe.toml" in first
    assert main(["report", "c"]) == 0
    assert Path("c/report.html").read_text() == first
    Path("c/cluster.toml").rename("c/kept.toml")
    assert main(["train", "c/recipe.toml", "--virtual", "--steps", "1", "--quiet", "--out", "run"]) == 0
    settings = Path("c/recipe.toml").read_text()
    assert "workers = 2" in settings
    assert "cluster" not in settings
