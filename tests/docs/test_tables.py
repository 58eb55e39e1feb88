"""Measured tables of README and docs are those that the benchmarks wrote."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_as_measured(tables: ModuleType) -> None:
    marked = [path for path in tables.PAGES if "<!-- measured:" in path.read_text()]
    assert marked
    for path in marked:
        assert tables.rendered(path.read_text()) == path.read_text(), f"{path.name}: run python docs/make_tables.py"


def test_a_figure_changed_by_hand_is_noticed(tables: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| DDP |"))
    changed = text.replace(row, row.replace(row.split("|")[2].strip(), "1.0", 1))
    assert changed != text
    assert tables.rendered(changed) == text


# Pages that another script writes as a whole.
_WRITTEN = {"faults.md": "tests/chaos/page.py", "reproduce.md": "equipoise reproduce", "reproduce-full.md": "the same"}
_OTHERS = ("| wire | bytes per element |",)  # computed, and compared by tests/docs/test_wire_page.py


def tables_by_hand(text: str) -> list[str]:
    """Headings of the tables outside of markers of which most cells hold a number."""
    outside = re.sub(r"<!-- measured: .*?<!-- end -->", "", text, flags=re.DOTALL)
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", outside, flags=re.MULTILINE):
        head, _, *body = block.splitlines()
        cells = [cell for row in body for cell in row.split("|")[2:-1]]
        numbers = [cell for cell in cells if re.match(r"\s*[\d.,*±-]*\d", cell)]
        if len(numbers) > len(cells) / 2 and not head.startswith(_OTHERS):
            found.append(head)
    return found


def test_no_measured_table_is_written_by_hand(tables: ModuleType) -> None:
    for path in tables.PAGES:
        if path.name not in _WRITTEN:
            assert not tables_by_hand(path.read_text()), (
                f"{path.name}: put it into docs/measured, and markers around it"
            )


def test_a_table_by_hand_is_noticed() -> None:
    table = "| what | seconds |\n|---|---|\n| this | 1.5 ± 0.1 |\n| that | 2,000 |\n"
    assert tables_by_hand(f"Text\n\n{table}\nText\n") == ["| what | seconds |"]
    assert not tables_by_hand(f"Text\n<!-- measured: a b -->\n{table}<!-- end -->\n")


def test_every_stored_table_says_where_it_comes_from_and_is_shown(tables: ModuleType) -> None:
    shown = "".join(path.read_text() for path in tables.PAGES)
    for path in sorted((ROOT / "docs" / "measured" / "pages").glob("*.json")):
        for name, table in json.loads(path.read_text()).items():
            assert {"date", "commit", "command"} <= set(table), f"{path.name}: {name}"
            assert all(len(row) == len(table["head"]) for row in table["rows"]), f"{path.name}: {name}"
            assert f"<!-- measured: pages/{path.stem} {name} -->" in shown, f"{path.name}: {name} stands nowhere"
