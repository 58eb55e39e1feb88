"""A short version of `make chaos`: a few faults of each kind, drawn from a fixed seed, and the page that it writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from . import checkpoints, churn, disks, hangs, kills, links, odd_files, own_loops
from .count import Row, Sums
from .page import GOALS, PAGE, page, parsed

_RNG = random.Random


def counted(scenario: Callable[[Sums], object]) -> Sums:
    sums = Sums()
    scenario(sums)
    assert any(row.held for row in sums.rows.values())
    assert {row.fault: row.failures for row in sums.rows.values() if row.failures} == {}
    return sums


def test_kills_inside_a_write_and_elsewhere(tmp_path: Path) -> None:
    sums = counted(lambda sums: kills.killed_many_times("diloco", _RNG(1), tmp_path / "run", sums, most=3))
    assert "killed workers" in sums.rows


def test_a_stopped_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "TIMEOUT", 1.0)
    counted(lambda sums: hangs.stopped_worker("d-psgd", _RNG(0), tmp_path / "run", sums))


def test_workers_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churn, "EPOCHS", 8)
    counted(lambda sums: churn.churned("periodic-average", _RNG(2), tmp_path / "run", sums, faults=2))


@pytest.mark.skipif(not disks.possible(), reason="mounting needs root")
def test_a_full_disk_and_a_folder_that_becomes_read_only(tmp_path: Path) -> None:
    for seed in (0, 2):
        counted(lambda sums, seed=seed: disks.faulty_disk("all-reduce", _RNG(seed), tmp_path / str(seed), sums))


def test_a_link_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "TIMEOUT", 1.0)
    try:
        with links.hosts() as network:

            def cut(sums: Sums) -> None:
                for attempt in range(3):  # on a busy machine a run may end before its link is cut
                    if not sums.rows:
                        links.cut_link("slowmo", _RNG(1 + attempt), tmp_path / str(attempt), sums, network)

            counted(cut)
    except OSError as error:
        pytest.skip(str(error))


def test_damaged_and_rewritten_checkpoints(tmp_path: Path) -> None:
    rng = _RNG(3)
    counted(lambda sums: checkpoints.damaged("all-reduce", rng, tmp_path, sums))
    for _ in range(4):
        counted(lambda sums: checkpoints.rewritten("all-reduce", rng, tmp_path, sums))


def test_odd_files(tmp_path: Path) -> None:
    for case in odd_files.some(_RNG(4), 6):
        counted(lambda sums, case=case: odd_files.odd_file(case, tmp_path, sums))


def test_an_own_loop_to_the_end_of_the_interpreter(tmp_path: Path) -> None:
    counted(lambda sums: own_loops.to_the_end(_RNG(5), 2, tmp_path, sums))


# -- what is counted, and the page -------------------------------------------------------------------------------------
def test_a_fault_that_was_not_tried_does_not_count_as_held() -> None:
    sums, other = Sums(), Sums()
    row = sums.row("kill -9 of a worker", "resumed")
    assert not row.passed
    assert row.count(True)
    assert sums.passed
    other.row("kill -9 of a worker", "resumed").count(False, "seed 3")
    other.row("kill -9 of a worker", "resumed").measured(2.0)
    sums.merge(other)
    assert (row.held, row.tried, row.worst, row.failures) == (1, 2, 2.0, ["seed 3"])
    assert not sums.passed
    assert Sums.parse(sums.dump()) == sums


def test_the_page_says_what_was_missed() -> None:
    rows = [Row("kill -9 of a worker", "resumed", 100, 99), Row("goodput with kills", "90 %", 2, 2, 93.4, "%")]
    text = page(rows, "a machine")
    assert "| kills (`kill -9`) survived or resumed | 99 of 100 | **missed** |" in text
    assert "| elastic runs, a kill every 50 rounds: 90 % of the ideal goodput | 2 of 2 | met |" in text
    assert "| goodput with kills | 90 % | 2 of 2 | 93.4 % |" in text
    assert parsed(text) == (rows, "a machine")


def test_the_page_in_the_docs_is_what_a_run_wrote() -> None:
    """Nothing in it is written by hand, and every goal is there."""
    text = PAGE.read_text()
    rows, setup = parsed(text)
    assert page(rows, setup) == text
    assert text.count("\n| ") >= len(GOALS) + len(rows)
