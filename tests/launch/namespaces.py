"""Hosts as network namespaces on one bridge, each with a working folder of its own. Nothing leaves the machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def possible() -> bool:
    """May this process make namespaces?"""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"eqtry{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    _ip("netns", "del", name, check=False)
    return tried.returncode == 0


class Hosts:
    """Made and removed by `hosts`. `ssh` is a script that stands for ssh: HOST, then a line for its shell."""

    def __init__(self, folder: Path, count: int):
        self.folder, self.count = folder, count
        self.prefix = f"eqh{os.getpid() % 100000}"  # interface names have 15 characters at the most
        self.network = f"10.{231 + os.getpid() % 8}.{os.getpid() // 8 % 256}"
        self.ssh = folder / "ssh"

    def address(self, host: int) -> str:
        return f"{self.network}.{host + 1}"

    def work(self, host: int) -> Path:
        """The working folder of a host, which no other one uses."""
        return self.folder / f"host{host}"

    def start(self, host: int, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Run a Python module on a host, in its own folder."""
        told = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **environment}
        told.pop("GLOO_SOCKET_IFNAME", None)
        with open(self.folder / f"log{host}", "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                env=told,
                stdout=log,
                stderr=log,
                text=True,
                preexec_fn=lambda: self.enter(host),
            )

    def enter(self, host: int) -> None:
        """Make the calling process one of this host, with a name of its own."""
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/run/netns/{self.prefix}{host}", os.O_RDONLY)
        if libc.setns(handle, 0x40000000) or libc.unshare(0x04000000):  # CLONE_NEWNET, CLONE_NEWUTS
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")
        os.close(handle)
        socket.sethostname(f"machine{host}")
        os.chdir(self.work(host))

    def log(self, host: int) -> str:
        return (self.folder / f"log{host}").read_text()

    def cut(self, host: int) -> None:
        """Take a host off the network."""
        _ip("link", "set", f"{self.prefix}o{host}", "down")

    def write_hosts_file(self, hosts: list[int]) -> Path:
        path = self.folder / "hosts.txt"
        path.write_text("".join(f"{self.address(host)}\n" for host in hosts))
        return path


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[Hosts]:
    made = Hosts(folder, count)
    bridge = f"{made.prefix}b"
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        cases = ""
        for host in range(count):
            space, outer, inner = (f"{made.prefix}{kind}{host}" for kind in ("", "o", "i"))
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", space)
            _ip("link", "set", outer, "master", bridge)
            _ip("link", "set", outer, "up")
            _ip("-n", space, "addr", "add", f"{made.address(host)}/24", "dev", inner)
            _ip("-n", space, "link", "set", inner, "up")
            _ip("-n", space, "link", "set", "lo", "up")
            made.work(host).mkdir()
            cases += f"{made.address(host)}) space={space}; cd {made.work(host)};;\n"
        # As sshd would: the words become one line for a shell that begins in the folder of the host.
        made.ssh.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\nshift\nexec ip netns exec $space sh -c "$*"\n')
        made.ssh.chmod(0o755)
        yield made
    finally:
        for host in range(count):
            _ip("netns", "del", f"{made.prefix}{host}", check=False)
        _ip("link", "del", bridge, check=False)
