"""`equipoise doctor --hosts FILE`: can the workers of these hosts train together?"""

from __future__ import annotations

import json
import queue
import shlex
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..launch.host_probe import PATIENCE
from ..launch.hosts import Host
from .doctor import Finding

_START = 60.0  # seconds for ssh and the imports of torch
_APART = 1.0  # seconds that clocks may differ


class Probe:
    """The conversation with one host. After a problem it answers nothing more."""

    def __init__(self, host: Host, ssh: str, python: str):
        self.host, self.problem = host, ""
        line = f"{shlex.quote(python)} -m equipoise doctor --probe"
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors = ""
        try:
            pipe = subprocess.PIPE
            words = [*shlex.split(ssh), host.address, line]
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        except OSError as error:
            self.problem = f"{ssh}: {error.strerror}"
            return
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            self._errors = errors.read()

    def ask(self, question: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        if self.problem:
            return {}
        try:
            if question is not None:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._lines.get(timeout=seconds))
        except (queue.Empty, ValueError, OSError):
            time.sleep(0.2)
            said = self._errors.strip().splitlines()
            self.problem = said[-1] if said else f"no answer within {seconds:g} s"
            return {}
        return answer

    def close(self) -> None:
        if hasattr(self, "_process"):
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            for thread in self._threads:
                thread.join(PATIENCE)


def examine_hosts(hosts: list[Host], ssh: str, python: str) -> list[Finding]:
    """Whom ssh reaches, versions, clocks, and every connection between two hosts, both ways."""
    probes = [Probe(host, ssh, python) for host in hosts]
    with ThreadPoolExecutor(max_workers=len(hosts)) as together:
        facts = list(together.map(lambda probe: probe.ask(None, _START), probes))
        clocks = [_offset(probe) for probe in probes]

        def reach(probe: Probe) -> dict[str, Any]:
            return probe.ask({"reach": _others(hosts, facts, probe.host)}, 3 * PATIENCE)

        reached = list(together.map(reach, probes))
        list(together.map(Probe.close, probes))
    findings: list[Finding] = []
    for probe, fact in zip(probes, facts, strict=True):
        name, status = f"host {probe.host.name}", "does not answer"
        if fact:
            versions, addresses = fact["versions"], fact["interfaces"]
            status = " ".join(f"{key} {value}" for key, value in versions.items())
            status += "; " + ", ".join(f"{key} {value}" for key, value in addresses.items() if key != "lo")
        problem = f"{probe.problem}: check `{ssh} {probe.host.address}`, --python, and PYTHONPATH there"
        findings.append(Finding(name, status, problem if probe.problem else ""))
    findings += _versions(hosts, facts) + _clocks(hosts, clocks)
    return findings + _links(hosts, facts, reached)


def _others(hosts: list[Host], facts: list[dict[str, Any]], own: Host) -> list[tuple[str, int]]:
    return [(host.name, fact["port"]) for host, fact in zip(hosts, facts, strict=True) if fact and host != own]


def _offset(probe: Probe) -> float | None:
    """How far the clock of a host is ahead of this one's."""
    before = time.time()
    answer = probe.ask({"time": 1}, PATIENCE)
    return answer["time"] - (before + time.time()) / 2 if answer else None


def _versions(hosts: list[Host], facts: list[dict[str, Any]]) -> list[Finding]:
    found: list[Finding] = []
    for package in ("equipoise", "torch"):
        have = {host.name: fact["versions"][package] for host, fact in zip(hosts, facts, strict=True) if fact}
        if not have:
            continue
        common = Counter(have.values()).most_common(1)[0][0]
        odd = [f"{name} has {value}" for name, value in have.items() if value != common]
        problem = f"{', '.join(odd)}, the others {common}: install the same on all hosts" if odd else ""
        found.append(Finding(f"{package} everywhere", common if not odd else "differs", problem))
    return found


def _clocks(hosts: list[Host], clocks: list[float | None]) -> list[Finding]:
    known = {host.name: offset for host, offset in zip(hosts, clocks, strict=True) if offset is not None}
    if len(known) < 2:
        return []
    apart = max(known.values()) - min(known.values())
    last = max(known, key=lambda name: abs(known[name] - sorted(known.values())[len(known) // 2]))
    problem = f"that of {last} is wrong: events of a run would be out of order; let all hosts follow a time server"
    return [Finding("clocks", f"within {apart:.2f} s", problem if apart > _APART else "")]


def _links(hosts: list[Host], facts: list[dict[str, Any]], reached: list[dict[str, Any]]) -> list[Finding]:
    findings: list[Finding] = []
    for host, answer in zip(hosts, reached, strict=True):
        others = _others(hosts, facts, host)
        rows = list(zip(others, answer.get("reached", ()), strict=False))
        bad = [f"{name} ({row['problem']})" for (name, _), row in rows if "problem" in row]
        if not rows:
            continue
        own = sorted({row["own"] for _, row in rows if "own" in row})
        slowest = max((row["ms"] for _, row in rows if "ms" in row), default=0.0)
        status = f"reaches {len(rows) - len(bad)} of {len(rows)}, from {', '.join(own) or 'nowhere'}, {slowest:.1f} ms"
        problem = f"cannot reach {', '.join(bad)}: all hosts need each other's ports, see docs/hosts.md" if bad else ""
        if any(address.startswith("127.") for address in own):
            problem = f"uses {', '.join(own)} for another host: give addresses, not names that stand for this host"
        findings.append(Finding(f"network of {host.name}", status, problem))
    return findings
