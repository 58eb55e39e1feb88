"""Measured tables of README and docs are those that the benchmarks wrote."""

from __future__ import annotations

import importlib.util
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
