"""Several hosts with separate folders: network namespaces stand for them. Skipped where none can be made."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.cli.main import main
from equipoise.comm.current import set_current
from equipoise.core.errors import CheckpointError, UserError
from equipoise.launch.files import PRINTED
from equipoise.launch.hosts import Host, environments, read_hosts

from . import namespaces
from .namespaces import Hosts

needs_namespaces = pytest.mark.skipif(not namespaces.possible(), reason="network namespaces are not permitted here")
TRAIN = ["--data", "synthetic", "--data.examples", "250", "--batch", "8", "--period", "2", "--deterministic", "--quiet"]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 3) as made:
        yield made


def run(made: Hosts, ranks: list[int], *words: str, port: int) -> list[tuple[int, str]]:
    """`equipoise WORDS` on these hosts, one worker each, by rank; exit codes and what they wrote to stderr."""
    context = multiprocessing.get_context("fork")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # imports much of torch: once here
    children = []
    for rank, host in enumerate(ranks):
        told = {"RANK": rank, "WORLD_SIZE": len(ranks), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
        child = context.Process(target=_worker, args=(made, host, made.address(ranks[0]), told, words))
        child.start()
        children.append(child)
    for child in children:
        child.join(90)
        if child.is_alive():
            child.kill()
            child.join()
    errors = [(made.work(host) / "stderr").read_text() for host in ranks]
    return [(child.exitcode or 0, error) for child, error in zip(children, errors, strict=True)]


def _worker(made: Hosts, host: int, first: str, told: dict[str, int], words: tuple[str, ...]) -> None:
    code = 99
    try:
        made.enter(host)
        log = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = os.fdopen(log, "w")
        torch.set_num_threads(1)
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        os.environ.update({"MASTER_ADDR": first, **{name: str(value) for name, value in told.items()}})
        set_current(None)
        code = main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def result(made: Hosts, host: int, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.work(host) / run / "result.json").read_text())
    return found


@needs_namespaces
def test_each_host_keeps_its_own_files_and_a_lost_host_is_named_and_left_out(three: Hosts, tmp_path: Path) -> None:
    assert main(["train", *TRAIN, "--virtual", "--workers", "3", "--steps", "12", "--out", str(tmp_path / "v")]) == 0
    expected = json.loads((tmp_path / "v" / "result.json").read_text())
    options = ["--steps", "6", "--checkpoint-every", "3", "--keep", "1", "--out", "runs/a"]
    for code, error in run(three, [0, 1, 2], "train", *TRAIN, *options, port=29511):
        assert code == 0, error
    for host in range(3):
        parts = three.work(host) / "runs/a/checkpoints"
        assert sorted(p.name for p in parts.iterdir()) == ["step-6"], "older ones are removed"
        assert sorted(p.name for p in (parts / "step-6").iterdir()) == ["manifest.json", f"worker-{host}.pt"]
        assert (three.work(host) / "runs/a/model.pt").exists()
        assert (three.work(host) / "runs/a/recipe.toml").exists()

    # Other ranks on the same hosts: files go to where they are needed, and the bits are those of one machine.
    for code, error in run(three, [2, 0, 1], "resume", "runs/a", "--steps", "12", "--quiet", port=29512):
        assert code == 0, error
    results = [result(three, host, "runs/a") for host in range(3)]
    assert {row["params_sha256"] for row in results} == {expected["params_sha256"]}
    assert {row["samples"] for row in results} == {expected["samples"]}

    # Host 1 is lost, with its disk. It was rank 2 in the end.
    ended = run(three, [0, 2], "resume", "runs/a", "--steps", "40", "--quiet", port=29513)
    assert [code for code, _ in ended] == [CheckpointError.code] * 2
    for _, error in ended:
        assert "the checkpoint of step 12 lacks the files of worker 2 (host machine1)" in error
        assert "--without-missing" in error
    words = ["resume", "runs/a", "--epochs", "2", "--quiet", "--without-missing"]
    for code, error in run(three, [0, 2], *words, port=29514):
        assert code == 0, error
    after = result(three, 0, "runs/a")
    assert after == result(three, 2, "runs/a")
    assert len(after["workers"]) == 2
    assert after["samples"] == 2 * 200, "every example of both epochs once, those of the lost worker too"


@needs_namespaces
def test_a_half_written_checkpoint_is_passed_over(three: Hosts) -> None:
    """One host was killed while it wrote: the newest checkpoint that all have is taken, on all hosts."""
    options = ["--steps", "6", "--checkpoint-every", "3", "--keep", "2", "--out", "runs/b"]
    assert [code for code, _ in run(three, [0, 1], "train", *TRAIN, *options, port=29515)] == [0, 0]
    newest = three.work(1) / "runs/b/checkpoints/step-6"
    newest.rename(newest.with_name(".step-6.half.partial"))
    for host in (0, 1):
        (three.work(host) / "runs/b/result.json").unlink()
    before = (three.work(0) / "runs/b/events.jsonl").read_text()
    for code, error in run(three, [0, 1], "resume", "runs/b", "--quiet", port=29516):
        assert code == 0, error
    events = (three.work(0) / "runs/b/events.jsonl").read_text()[len(before) :]
    assert json.loads(events.splitlines()[0])["step"] == 3
    assert result(three, 0, "runs/b")["params_sha256"] == result(three, 1, "runs/b")["params_sha256"]


@needs_namespaces
def test_launch_and_doctor_over_ssh(three: Hosts, capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(namespaces.SRC))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    file = three.write_hosts_file([0, 1])
    how = ["--hosts", str(file), "--ssh", str(three.ssh), "--python", sys.executable]
    words = ["train", *TRAIN, "--steps", "4", "--timeout", "30", "--out", "runs/c"]
    assert main(["launch", *how, "--dir", ".", "--port", "29517", "--", *words]) == 0, capfd.readouterr().err
    hashes = {result(three, host, "runs/c")["params_sha256"] for host in (0, 1)}
    assert len(hashes) == 1
    assert "runs/c" in capfd.readouterr().out

    three.cut(2)
    three.write_hosts_file([0, 1, 2])
    assert main(["doctor", *how]) == 2
    told = capfd.readouterr().out
    assert f"network of {three.address(0)}  reaches 1 of 2, from {three.address(0)}" in told
    assert f"problem: network of {three.address(1)}: cannot reach {three.address(2)}" in told
    assert "torch everywhere" in told
    assert "clocks " in told


# -- files, without hosts ----------------------------------------------------------------------------------------------
def test_a_hosts_file_is_read_and_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("# mine\nnode1 slots=2\n\nme@10.0.0.2  # slow\n")
    hosts = read_hosts(path)
    assert hosts == [Host("node1", 2), Host("me@10.0.0.2", 1)]
    rows = environments(hosts, 29400)
    assert [(host.name, told["RANK"], told["LOCAL_RANK"]) for host, told in rows] == [
        ("node1", "0", "0"),
        ("node1", "1", "1"),
        ("10.0.0.2", "2", "0"),
    ]
    assert {told["MASTER_ADDR"] for _, told in rows} == {"node1"}
    for text in (
        "node1 four",
        "node1 slots=0",
        "-oProxyCommand=x",
        "a b c",
        "node1\nnode1",
        "",
        "node1 slots=" + "9" * 4000,
    ):
        path.write_text(text)
        with pytest.raises(UserError, match="hosts.txt"):
            read_hosts(path)


@pytest.mark.parametrize("kind", PRINTED)
def test_what_is_printed_is_what_the_launcher_reads(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    words = ["train", "--out", "runs/it's", "--partition.alpha", "0.5"]
    assert main(["launch", "--print", kind, "--nodes", "3", "--slots", "2", "--port", "29600", "--", *words]) == 0
    text = capsys.readouterr().out
    if kind in ("torchrun", "slurm"):
        assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0
        lines = [line for line in text.splitlines() if line.startswith(("torchrun", "srun"))]
    elif kind == "kubernetes":
        service, job = yaml.safe_load_all(text)
        assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        assert job["spec"]["completions"] == 3
        lines = [job["spec"]["template"]["spec"]["containers"][0]["command"][2]]
    else:
        task = yaml.safe_load(text)
        assert 3 in (task.get("num_nodes"), task.get("nodes"))
        lines = task["commands"][1:] if kind == "dstack" else [task["run"].strip()]
    for line in lines:
        command = shlex.split(line)
        if kind == "slurm":  # what srun's shell runs
            command = shlex.split(command[-1])
        assert command[-len(words) - 1 :] == ["equipoise", *words]
        if command[0] == "torchrun":
            options = dict(zip(command[1:-7:2], command[2:-7:2], strict=False))
            assert options["--nproc-per-node"] == "2"
            assert options["--master-port"] == "29600"
    if kind == "torchrun":
        assert [line.split("--node-rank ")[1][0] for line in lines] == ["0", "1", "2"]


def test_launch_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["--", "train", "--out", "r"], "--hosts FILE"),
        (["--print", "slurm", "--", "train"], "--out FOLDER"),
        (["--print", "slurm", "--", "compare"], "only train and resume"),
        (["--hosts", str(tmp_path / "none"), "--", "resume", "r"], "cannot read"),
    ):
        assert main(["launch", *words]) == UserError.code
        assert text in capsys.readouterr().err
