"""The tables of docs/wire.md state what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import registry
from equipoise.config.fit import check_fit
from equipoise.core.errors import UserError
from equipoise.period.every import Every
from equipoise.sync.base import Sync
from equipoise.wire.base import Wire, pieces_of

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
MATRIX = pieces_of(((1000, 1000),))
WORKERS = 4
WIRES: dict[str, Any] = {entry.name: registry.get("wire", entry.name) for entry in registry.entries("wire")}


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its two head lines."""
    lines = PAGE.split(f"\n{heading}\n", 1)[1].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", table("## Bytes"), ids=lambda row: row[0].strip("`"))
def test_bytes(row: list[str]) -> None:
    name, *stated = row
    elements, wire = 10**6, WIRES[name.strip("`")]()
    bytes = wire.message_bytes(elements, MATRIX)
    exact = [bytes / elements, 4 * elements / bytes]
    for size in (4, 16):
        ring = 4 * elements * 2 * (size - 1) / size
        exact.append(ring / wire.sum_cost(elements, MATRIX, 0, size)[1])
    for text, value in zip(stated, exact, strict=True):
        # Rounding to the digits that are stated.
        digits = len(text.partition(".")[2])
        assert abs(float(text) - value) <= 0.5 * 10**-digits


def test_every_wire_is_in_the_table_of_bytes() -> None:
    assert {row[0].strip("`") for row in table("## Bytes")} == set(WIRES)


def test_every_collective_is_stated() -> None:
    rows = PAGE.split("| collective |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    stated = {name: cell[0].split(",")[0] for cell in cells for name in quoted(cell[1])}
    assert stated == {name: wire().collective() for name, wire in WIRES.items() if not wire.plain}


def test_refusals() -> None:
    """Every sync that refuses a wire by default is in the table, with the wires that it takes."""
    stated: dict[str, set[str]] = {}
    before: set[str] = set()
    for cell, names, _ in table("## What is refused"):
        before = before if names == "the same" else set(quoted(names))
        if "state=" not in cell:
            stated |= dict.fromkeys(quoted(cell), before)
    syncs: dict[str, Sync] = {entry.name: registry.get("sync", entry.name)() for entry in registry.entries("sync")}
    compressing = {name for name, wire in WIRES.items() if not wire.plain}
    taken = {sync: {name for name in compressing if takes(method, WIRES[name])} for sync, method in syncs.items()}
    assert stated == {sync: names for sync, names in taken.items() if names != compressing}


def takes(sync: Sync, wire: type[Wire]) -> bool:
    try:
        check_fit(period=Every(), sync=sync, wire=wire(), workers=WORKERS)
    except UserError:
        return False
    return True
