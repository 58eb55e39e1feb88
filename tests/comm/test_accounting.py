"""Where each worker's time went: compute, wait, communicate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.comm.ledger import Ledger
from equipoise.launch.start import spawn
from equipoise.observe.events import read_events
from equipoise.simulate.cluster import PAYLOAD, Cluster, Link

LINK = Link(bandwidth=8e6 / PAYLOAD, latency=1e-3)  # a byte in a microsecond
KINDS = ("compute", "wait", "communicate")


def accounts(function: Any, cluster: Cluster) -> list[list[float]]:
    def work(comm: Any) -> list[float]:
        function(comm)
        seconds = [comm.ledger.spent[kind] for kind in KINDS]
        assert sum(seconds) == pytest.approx(comm.now, rel=1e-12)
        return seconds

    return spawn(work, cluster.size, virtual=True, cluster=cluster)


def test_a_collective() -> None:
    def work(comm: Any) -> None:
        comm.computed(10 * (1 + comm.rank))
        comm.gather(torch.ones(250))

    way = 2 * 2e-3
    assert accounts(work, Cluster([100.0] * 3, LINK)) == pytest.approx(
        [pytest.approx([0.1, 0.2, way]), pytest.approx([0.2, 0.1, way]), pytest.approx([0.3, 0.0, way])]
    )


def test_a_message() -> None:
    """Who comes early waits until the message leaves, who comes late only for what is left of its way."""

    def work(comm: Any) -> None:
        peer = 1 - comm.rank
        comm.computed(1 + comm.rank * 0.1)
        comm.exchange({peer: torch.ones(250)}, {peer: torch.empty(250)}).wait()

    early, late = accounts(work, Cluster([100.0] * 2, LINK))
    assert early == pytest.approx([0.01, 1e-3, 2e-3])
    assert late == pytest.approx([0.011, 0.0, 1e-3])


def test_what_is_hidden_behind_work_costs_nothing() -> None:
    def work(comm: Any) -> None:
        pending = comm.exchange({1 - comm.rank: torch.ones(250)}, {1 - comm.rank: torch.empty(250)})
        comm.computed(10)
        pending.wait()

    assert accounts(work, Cluster([100.0] * 2, LINK)) == [[0.1, 0.0, 0.0]] * 2


def train(out: Path, **how: Any) -> eq.Run:
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(5, 1)
    torch.nn.init.zeros_(model.weight)
    return eq.train(
        model, torch.nn.MSELoss(), (x, x.sum(1, keepdim=True)), workers=3, batch=4, log_every=3, out=out, **how
    )


CLUSTER = Cluster([100.0, 200.0, 400.0], LINK)


@pytest.mark.parametrize(
    "sync", [eq.sync.AllReduce(), eq.sync.DPSGD(), eq.sync.DeTAG(frozen=True, overlap=True)], ids=repr
)
def test_all_of_a_run_is_accounted_for_and_goes_on_after_a_checkpoint(sync: Any, tmp_path: Path) -> None:
    uninterrupted = train(tmp_path / "uninterrupted", sync=sync, cluster=CLUSTER, epochs=2)
    for row in [*uninterrupted.result["workers"], *uninterrupted.events]:
        spent = sum(row[kind] for kind in KINDS)
        assert spent == pytest.approx(row["simulated_seconds"], abs=1e-7)
    assert {"step", "end"} <= {event["event"] for event in uninterrupted.events}
    slow, _, fast = uninterrupted.result["workers"]
    assert slow["wait"] < fast["wait"]
    train(tmp_path / "parts", sync=sync, cluster=CLUSTER, epochs=1)
    parts = train(tmp_path / "parts", sync=sync, cluster=CLUSTER, epochs=2, resume=True)
    for one, other in zip(uninterrupted.result["workers"], parts.result["workers"], strict=True):
        if not getattr(sync, "overlap", False):  # a message under way at a checkpoint is sent again
            assert [one[kind] for kind in KINDS] == pytest.approx([other[kind] for kind in KINDS], rel=1e-12)
        assert sum(other[kind] for kind in KINDS) == pytest.approx(other["simulated_seconds"], rel=1e-12)


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "processes"])
def test_seconds_are_real_without_a_cluster(virtual: bool, tmp_path: Path) -> None:
    run = train(tmp_path, virtual=virtual, epochs=1)
    rows = json.loads((tmp_path / "result.json").read_text())["workers"]
    for row in rows:
        assert 0 < row["compute"] < row["seconds"]
        assert 0 <= row["wait"] + row["communicate"] <= row["seconds"] - row["compute"]
    if not virtual:
        assert all(row["communicate"] > 0 for row in rows)
        assert min(row["wait"] for row in rows) >= 0
    assert all(kind in event for event in run.events for kind in KINDS)
    assert len(read_events(tmp_path)) == len(run.events)


def test_the_last_to_come_tells_waiting_from_the_way() -> None:
    ledger = Ledger(communicate=5.0, unattributed=3.0)
    ledger.attribute_wait(1.0)
    assert (ledger.wait, ledger.communicate, ledger.unattributed) == (2.0, 3.0, 0.0)
