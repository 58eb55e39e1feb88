"""Run a benchmark on a limited network: one process per network namespace, links limited by a token bucket.

    sudo python namespaces.py gossip.py --rates 1gbit,100mbit -- --repetitions 5 --block 5

Creates a bridge and one namespace per worker, runs the benchmark in them as torchrun would, prints the output of
worker 0, and removes everything again. Needs root and iproute2 (`ip`, `tc`). No packet leaves the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

PREFIX = "eqbench"
NETWORK = "10.231.77"
BURST = {"1gbit": "128kb"}  # about a millisecond: what an idle link may send at once


def run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True, text=True)


def make(workers: int, rate: str) -> None:
    """Namespaces on one bridge. Sending and receiving are limited to `rate` each, as on a full-duplex link; to nothing
    if it is empty.
    """
    run("ip", "link", "add", PREFIX, "type", "bridge")
    run("ip", "link", "set", PREFIX, "up")
    for k in range(workers):
        space, outer, inner = f"{PREFIX}{k}", f"{PREFIX}o{k}", f"{PREFIX}i{k}"
        run("ip", "netns", "add", space)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        run("ip", "link", "set", inner, "netns", space)
        run("ip", "link", "set", outer, "master", PREFIX)
        run("ip", "link", "set", outer, "up")
        run("ip", "-n", space, "addr", "add", f"{NETWORK}.{k + 1}/24", "dev", inner)
        run("ip", "-n", space, "link", "set", inner, "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        # BBR, where it is the default, leaves a token bucket idle while it probes; other machines run on losses.
        run("ip", "netns", "exec", space, "sysctl", "-w", "net.ipv4.tcp_congestion_control=reno")
        if not rate:
            continue
        bucket = ["rate", rate, "burst", BURST.get(rate, "32kb"), "latency", "400ms"]
        run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", inner, "root", "tbf", *bucket)
        run("tc", "qdisc", "add", "dev", outer, "root", "tbf", *bucket)


def remove(workers: int) -> None:
    for k in range(workers):
        run("ip", "netns", "del", f"{PREFIX}{k}", check=False)
    run("ip", "link", "del", PREFIX, check=False)


def measure(script: str, extra: list[str], workers: int) -> str:
    """Worker 0's output."""
    processes = []
    for k in range(workers):
        environment = {
            **os.environ,
            "RANK": str(k),
            "WORLD_SIZE": str(workers),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": f"{NETWORK}.1",
            "MASTER_PORT": "29677",
            "GLOO_SOCKET_IFNAME": f"{PREFIX}i{k}",
            "OMP_NUM_THREADS": "1",
        }
        command = ["ip", "netns", "exec", f"{PREFIX}{k}", sys.executable, script, *extra]
        out = subprocess.PIPE if k == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen(command, env=environment, stdout=out, text=True))
    text = processes[0].communicate()[0]
    for process in processes[1:]:
        process.wait()
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--rates", default="1gbit,100mbit")
    parser.add_argument("--workers", type=int, default=4)
    own, _, extra = " ".join(sys.argv[1:]).partition(" -- ")
    args = parser.parse_args(own.split())
    for rate in args.rates.split(","):
        remove(args.workers)
        try:
            make(args.workers, rate)
            print(f"== links of {rate}\n{measure(args.script, extra.split(), args.workers)}", flush=True)
        finally:
            remove(args.workers)


if __name__ == "__main__":
    main()
