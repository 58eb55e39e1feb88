"""The page in a browser, on a desktop, on a phone and in the dark. One browser serves all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli.main import main

from .browser import PATH, Tab, browser
from .test_front import comparison, data_of

pytestmark = pytest.mark.skipif(PATH is None, reason="needs Chromium")
OPEN = "document.querySelectorAll('details').forEach((part) => (part.open = true))"
PLOT = "document.getElementById('plot-0')"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(scope="module")
def shown(tab: Tab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The data of the page of a comparison, which the tab shows with all of its sections open."""
    path = comparison(tmp_path_factory.mktemp("runs"))
    tab.become()
    tab.open(path)
    tab.run(OPEN)
    tab.become()  # until the sections are drawn
    return data_of(path.read_text())


def visible(tab: Tab) -> list[Any]:
    """Numbers of the choices whose lines, bars and rows are shown."""
    lines = tab.run(f"[...new Set({PLOT}.data.filter((line) => line.visible).map((line) => line.line.color))]")
    kept = "[...document.querySelectorAll('{}')].filter((part) => !part.hidden).map((part) => part.dataset.choice)"
    bars, rows = tab.run(kept.format(".bar[data-choice]")), tab.run(kept.format("tr[data-choice]"))
    times = tab.run("document.getElementById('time-all').data[0].y.length")
    return [lines, bars, sorted(set(rows)), times]


def test_every_picture_is_drawn_and_a_hidden_choice_goes_everywhere(tab: Tab, shown: dict[str, Any]) -> None:
    assert tab.run("document.body.dataset.failed") is None
    pictures = len(shown["plots"]) + 2 * len(shown["accounts"]) + 1 + len(shown["classes"])
    assert len(shown["plots"]) == 8
    assert tab.run("document.querySelectorAll('.plot.js-plotly-plot').length") == pictures
    assert tab.run("document.querySelectorAll('.plot').length") == pictures
    one, two = shown["colours"]
    both = [[one, two], ["0", "1"], ["0", "1"], 2]
    assert visible(tab) == both
    tab.run("document.querySelector('[data-show=\"0\"]').click()")
    assert visible(tab) == [[two], ["1"], ["1"], 1]
    tab.run("document.querySelector('[data-only=\"0\"]').click()")
    assert visible(tab) == [[one], ["0"], ["0"], 1]
    assert tab.run("document.querySelector('[data-only=\"0\"]').ariaPressed") == "true"
    tab.run("document.querySelector('[data-only=\"0\"]').click()")
    assert visible(tab) == both
    assert not tab.said, tab.said


def test_controls_change_the_curves(tab: Tab, shown: dict[str, Any]) -> None:
    values = f"Array.from({PLOT}.data[0].y)"
    before = tab.run(values)
    change = "box = document.getElementById('{}'); box.value = '{}'; box.onchange({{ target: box }})"
    tab.run(change.format("smooth", 2))
    # Points at the ends have no neighbours on one side, those beside them one on each.
    expected = [before[0], *(sum(before[k - 1 : k + 2]) / 3 for k in range(1, len(before) - 1)), before[-1]]
    assert tab.run(values) == pytest.approx(expected)
    tab.run(change.format("smooth", 0))
    assert tab.run(values) == before
    tab.run(change.format("axis", "bytes"))
    assert tab.run(f"{PLOT}.layout.xaxis.title.text") == "bytes"
    tab.run(change.format("axis", "step"))
    assert tab.run(f"{PLOT}.layout.annotations[0].text") == "target 0.9"
    assert tab.run(f"{PLOT}.layout.shapes[0].y0") == 0.9
    sizes = next(plot["id"] for plot in shown["plots"] if plot["title"] == "Batch size")
    scale = f"document.getElementById('{sizes}').layout.yaxis.type || 'linear'"
    assert tab.run(scale) == "log", "it shows the noise scale too"
    ticks = tab.run(f"[...document.querySelectorAll('#{sizes} .ytick text')].map((tick) => tick.textContent)")
    assert ticks
    assert sorted(ticks, key=float) == ticks, "labels are whole numbers, not the first digit of one"
    tab.run(f"document.querySelector('[data-log=\"{sizes}\"]').click()")
    assert tab.run(scale) == "linear"
    tab.run("Plotly.downloadImage = (figure, how) => (window.saved = [figure.layout.title.text, how.format])")
    tab.run("document.querySelector('[data-save=\"plot-0\"][data-kind=svg]').click()")
    assert tab.run("window.saved") == ["Test accuracy", "svg"]


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(tab: Tab, shown: dict[str, Any]) -> None:
    assert tab.run("[...document.querySelectorAll('button, select, summary')].every((part) => part.tabIndex == 0)")
    unnamed = "[...document.querySelectorAll('button')].filter((part) => !part.ariaLabel && !part.textContent.trim())"
    assert tab.run(f"{unnamed}.length") == 0
    assert tab.run("[...document.querySelectorAll('select')].every((part) => part.labels.length == 1)")


def test_the_command_is_copied_with_and_without_a_clipboard(tab: Tab, shown: dict[str, Any]) -> None:
    command = "equipoise train 'my runs/recipe.toml'"
    tab.run("navigator.clipboard.writeText = async (text) => (window.copied = text)")
    tab.run("document.getElementById('copy').click()")
    assert tab.run("window.copied") == command
    assert tab.run("document.getElementById('copy').textContent") == "Copied"
    tab.run("navigator.clipboard.writeText = async () => { throw 'refused' }")
    tab.run("document.execCommand = (what) => (window.fallback = what + ': ' + getSelection())")
    tab.run("document.getElementById('copy').click()")
    assert tab.run("window.fallback") == f"copy: {command}"
    assert not tab.said, tab.said


def test_a_phone_shows_all_values_and_has_room_for_fingers(tab: Tab, shown: dict[str, Any]) -> None:
    tab.become(width=390, height=844)
    assert tab.run("document.documentElement.scrollWidth") == 390
    assert tab.run("document.querySelector('.controls').offsetHeight") <= 844 / 4
    small = tab.run(
        """[...document.querySelectorAll("button, select, summary")]
        .map((part) => [part.textContent, part.getBoundingClientRect()])
        .filter(([, box]) => box.height && (box.height < 44 || box.width < 44)).map(([text]) => text)"""
    )
    assert small == []
    outside = tab.run(
        """[...document.querySelectorAll("td")].map((cell) => [cell.textContent, cell.getBoundingClientRect()])
        .filter(([, box]) => box.height && (box.left < 0 || box.right > innerWidth)).map(([text]) => text)"""
    )
    assert outside == []
    assert tab.run("document.querySelectorAll('td').length") > 50
    title = "getComputedStyle(document.querySelector('.titled td[data-title=s]'), '::before').content"
    assert tab.run(title) == '"s"', "a value stands beside the heading of its column"
    tab.become()


def test_the_dark_is_dark(tab: Tab, shown: dict[str, Any], tmp_path: Path) -> None:
    lightness = "getComputedStyle({}).{}.match(/\\d+/g).slice(0, 3).map(Number)"
    paper = tab.run(lightness.format("document.body", "backgroundColor"))
    tab.become(dark=True)
    assert min(paper) > 200 > 60 > max(tab.run(lightness.format("document.body", "backgroundColor")))
    assert min(tab.run(lightness.format(f"{PLOT}.querySelector('.xtick text')", "fill"))) > 200
    path = tmp_path / "partition.html"
    words = "partition --partition iid --workers 2 --data.limit 40 --splits 1 --page"
    assert main([*words.split(), str(path)]) == 0
    tab.open(path)
    corner = """(async () => {
      const pictures = [...document.images], canvas = document.createElement("canvas").getContext("2d");
      await Promise.all(pictures.map((picture) => picture.decode()));
      return pictures.map((picture) => {
        canvas.drawImage(picture, 0, 0);
        return [...canvas.getImageData(1, 1, 1, 1).data];
      });
    })()"""
    assert tab.run(corner) == [[23, 23, 26, 255]] * 2
    tab.become()
    assert tab.run(corner) == [[255] * 4] * 2
