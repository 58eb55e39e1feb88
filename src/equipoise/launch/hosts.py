"""Hosts: their file, and what runs on them over ssh."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, NamedTuple

from ..core.errors import UserError
from ..core.torchrun import MOST_WORKERS

SSH = "ssh -o BatchMode=yes"


class Host(NamedTuple):
    """A line of the file: `[USER@]ADDRESS [slots=N]`."""

    address: str  # as ssh takes it
    slots: int = 1  # workers there

    @property
    def name(self) -> str:
        """As other hosts reach it."""
        return self.address.rpartition("@")[2]


def read_hosts(path: Path) -> list[Host]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"cannot read {path}: {why}; write one host per line") from None
    hosts: list[Host] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        address, slots = words[0], words[1].removeprefix("slots=") if len(words) == 2 else "1"
        if len(words) > 2 or not slots.isdecimal() or not 0 < int(slots[:9]) <= MOST_WORKERS or address[0] == "-":
            raise UserError(f"{path}, line {number}: {line.strip()[:60]!r}: write ADDRESS, or ADDRESS slots=4")
        if address in [host.address for host in hosts]:
            raise UserError(f"{path}, line {number}: {address} is there twice: write it once, with slots=2")
        hosts.append(Host(address, int(slots)))
    if not hosts:
        raise UserError(f"{path} names no host: write one per line")
    return hosts


def environments(hosts: list[Host], port: int) -> list[tuple[Host, dict[str, str]]]:
    """For each worker its host, and what torchrun would tell it."""
    size = sum(host.slots for host in hosts)
    rows: list[tuple[Host, dict[str, str]]] = []
    for host in hosts:
        for local in range(host.slots):
            told: dict[str, object] = {"RANK": len(rows), "WORLD_SIZE": size, "OMP_NUM_THREADS": 1}
            told |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": host.slots}
            told |= {"MASTER_ADDR": hosts[0].name, "MASTER_PORT": port}
            rows.append((host, {name: str(value) for name, value in told.items()}))
    return rows


def remote(words: list[str], environment: dict[str, str], folder: str) -> str:
    """A line for the shell of a host. The program is sent SIGTERM when its input ends: when the launcher is gone."""
    told = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    program = f"env {told} {shlex.join(words)}" if told else shlex.join(words)
    watch = "(cat <&3 >/dev/null; kill -TERM $p 2>/dev/null) >/dev/null 2>&1 & w=$!"
    return (
        f"cd {shlex.quote(folder)} || exit 2; exec 3<&0; {program} </dev/null 3<&- & p=$!; {watch}; "
        "wait $p; c=$?; kill $w 2>/dev/null; exit $c"
    )


class Remote:
    """A program on a host. Its lines are printed here, with the host before them unless it is `quiet`ly the first."""

    def __init__(self, ssh: str, host: Host, line: str, label: str = ""):
        self.host, self.label = host, label
        words = [*shlex.split(ssh), host.address, line]
        try:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
            )
        except OSError as error:
            raise UserError(f"cannot start {words[0]}: {error.strerror}; give another command with --ssh") from None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        ways = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._threads = [threading.Thread(target=self._copy, args=way, daemon=True) for way in ways]
        for thread in self._threads:
            thread.start()

    def _copy(self, source: IO[str], target: IO[str]) -> None:
        with source:
            for line in source:
                target.write(self.label + line)
                target.flush()

    def stop(self) -> None:
        """End its input, upon which it is sent SIGTERM there."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def wait(self, timeout: float | None = None) -> int:
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join()
        return code


def run_on_hosts(hosts: list[Host], words: list[str], *, ssh: str, folder: str, port: int) -> int:
    """Start one program per worker, wait for all; the exit code of the first that failed, 0 if none did."""
    workers: list[Remote] = []
    try:
        for host, environment in environments(hosts, port):
            label = "" if environment["RANK"] == "0" else f"[{host.name}] "
            workers.append(Remote(ssh, host, remote(words, environment, folder), label))
        codes = _collect(workers)
    except KeyboardInterrupt:
        print("equipoise: stopping the workers of all hosts", file=sys.stderr, flush=True)
        codes = [130]
    finally:
        for worker in workers:
            worker.stop()
    for worker in workers:
        worker.wait()
    return next((code if 0 < code < 256 else 3 for code in codes if code), 0)


def _collect(workers: list[Remote]) -> list[int]:
    """Codes in the order in which workers end."""
    codes: list[int] = []
    open_ones = list(workers)
    while open_ones:
        for worker in list(open_ones):
            try:
                codes.append(worker.wait(timeout=0.2 / len(open_ones)))
            except subprocess.TimeoutExpired:
                continue
            open_ones.remove(worker)
            if codes[-1]:
                name = worker.host.name
                what = f"equipoise: a worker on host {name} has ended with code {codes[-1]}"
                print(what, file=sys.stderr, flush=True)
    return codes
