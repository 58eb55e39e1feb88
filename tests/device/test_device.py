"""Models on a device that is not the CPU in type (see extension.cpp and docs/devices.md).

In processes of their own: once a device is there, autograd keeps a thread for it, and a process with threads of
autograd cannot be forked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.cli import device_check
from equipoise.cli.main import main
from equipoise.comm.routes import Routes
from equipoise.core.device import chosen_device
from equipoise.testing import toy

HERE = Path(__file__).parent


@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("g++") is None, reason="the device is built with g++")
@pytest.mark.parametrize("part", ["virtual", "processes"])
def test_on_the_device(part: str) -> None:
    words = ["-m", "pytest", str(HERE / f"inside_{part}.py"), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([sys.executable, *words], cwd=HERE.parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# -- names ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "said"),
    [("cuda", "finds no such device"), ("gpu", "known: auto, cpu"), ("cpu:1", "there is 1, counted from 0")],
)
def test_a_device_that_is_not_there_is_refused(name: str, said: str) -> None:
    with pytest.raises(eq.errors.UserError, match=said):
        chosen_device(name)


def test_names_of_devices_and_dtypes_are_taken_as_strings() -> None:
    """Also "auto", which is the CPU where there is nothing else."""
    data, loss = (toy.INPUTS, toy.TARGETS), nn.CrossEntropyLoss()
    by_name = eq.train(toy.model, loss, data, steps=2, device="auto", autocast="bfloat16").result
    by_object = eq.train(toy.model, loss, data, steps=2, device=torch.device("cpu"), autocast=torch.bfloat16).result
    assert by_name["params_sha256"] == by_object["params_sha256"]
    with pytest.raises(eq.errors.UserError, match="did you mean 'float16'"):
        eq.train(toy.model, loss, data, steps=2, autocast="float61")


# -- the way of a message ---------------------------------------------------------------------------------------------
CUDA = {"cpu": "gloo", "cuda": "nccl"}


@pytest.mark.parametrize(
    ("others", "backends", "why"),
    [
        ([("cuda", "", "nccl", "host", "1")], CUDA, None),
        ([("cuda", "", "nccl", "elsewhere", "0")], CUDA, None),
        ([("cuda", "", "nccl", "host", "0")], CUDA, "2 workers share 1 device"),
        ([("cuda", "amd", "nccl", "host", "1")], CUDA, "of several vendors"),
        ([("cpu", "", "gloo", "host", "None")], CUDA, "workers are on cpu and cuda"),
        ([("cuda", "", "gloo", "host", "1")], {"cpu": "gloo", "cuda": "gloo"}, "no backend of the group sends"),
        ([("cuda", "", None, "host", "1")], {"cpu": "gloo"}, "no backend of the group sends"),
    ],
)
def test_messages_go_directly_only_where_all_workers_can(
    others: list[Any], backends: dict[str, str], why: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("equipoise.core.device._said", set())
    monkeypatch.setattr("equipoise.comm.routes.host_id", lambda: "host")
    monkeypatch.setattr("equipoise.comm.routes._place", lambda device: str(device.index))
    routes = Routes(0, backends)
    for _ in range(2):
        routes.agree(torch.device("cuda:0"), lambda own: [own, *others])
    said = capsys.readouterr().err
    assert routes.direct == (frozenset({"cuda"}) if why is None else frozenset())
    assert (why or "messages by nccl") in said
    assert len(said.splitlines()) == 1  # once


# -- the command ------------------------------------------------------------------------------------------------------
def test_doctor_trains_resumes_and_compares(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """A few of the methods that it goes through."""
    chosen = [row for row in device_check.methods() if row[0] in ("sync sgp", "wire int8")]
    monkeypatch.setattr(device_check, "methods", lambda: chosen)
    monkeypatch.setattr(
        device_check, "_between_processes", lambda: [("sync all-reduce", {"sync": eq.sync.AllReduce()})]
    )
    assert main(["doctor", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    for line in ("2 processes, sync all-reduce", "sync sgp, resumed", "wire int8", "autocast float16", "no problems"):
        assert line in said
    assert "to the bit" in said


def test_doctor_says_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    real = device_check.run

    def wrong(model: Any, device: Any, **changes: Any) -> Any:
        """As if the random generator were not in the checkpoint."""
        found = real(model, device, **changes)
        if changes.get("resume"):
            found.result["params_sha256"] = "other"
        return found

    first = device_check._between_processes()[:1]
    monkeypatch.setattr(device_check, "methods", lambda: first)
    monkeypatch.setattr(device_check, "_between_processes", lambda: [])
    monkeypatch.setattr(device_check, "run", wrong)
    assert main(["doctor", "--device", "cpu"]) == 2
    assert "problem: sync all-reduce, resumed: resumed otherwise" in capsys.readouterr().out
