"""A user's own loop under torchrun, to the end of the interpreter: nothing may be said after training, by any worker.

A thread that comes back from a call into a store while the interpreter goes down aborts the process. Fast heartbeats
make such a call likely.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from .count import Sums
from .victim import patient

WORKERS = 2

# Imports once. Every launch is a pair of forks that run to the end of this very script, as a user's script would.
SCRIPT = """
import os, sys, time
import torch, equipoise as eq
import torch.distributed as dist
from equipoise.comm import heartbeat

launches, workers, seed = map(int, sys.argv[1:])
heartbeat.INTERVAL = 0.002
torch.set_num_threads(1)


def loop(comm=None):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = eq.Sampler((torch.randn(24, 3), torch.zeros(24)), batch=4)
    with eq.attach(model, optimizer, sync=eq.sync.PeriodicAverage(), period=2, sampler=sampler):
        for batch in sampler:
            optimizer.zero_grad()
            model(torch.randn(len(batch), 3)).square().mean().backward()
            optimizer.step()


eq.spawn(loop, 1, virtual=True)  # imports what is imported late
rank = None
for launch in range(launches):
    ready, told = os.pipe()
    agent = os.fork()
    if agent == 0:  # holds the store, as torchrun does
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(told, str(store.port).encode())
        time.sleep(120)
        os._exit(0)
    port = os.read(ready, 20).decode()
    pids = []
    for rank in range(workers):
        pid = os.fork()
        if pid == 0:
            break
        pids.append(pid)
    else:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(*codes, flush=True)
        os.kill(agent, 9)
        os.waitpid(agent, 0)
        os.close(ready)
        os.close(told)
        continue
    break
else:
    sys.exit(0)

os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers), MASTER_ADDR="127.0.0.1")
os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True", GLOO_SOCKET_IFNAME="lo")
loop()
way = (seed + launch) % 3  # the end of the script, sys.exit, or an error of the user's own after training
if way == 1:
    sys.exit(0)
if way == 2:
    raise SystemExit(7)
"""


def to_the_end(rng: random.Random, launches: int, folder: Path, sums: Sums) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seed = rng.randrange(1000)
    words = [sys.executable, "-c", SCRIPT, str(launches), str(WORKERS), str(seed)]
    with open(folder / "said", "w") as said:
        started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True)
        try:
            lines = started.communicate(timeout=patient(60 + 20 * launches))[0].splitlines()
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            lines = started.communicate()[0].splitlines()
    row = sums.row("own loops under torchrun", "end with their own exit code; no abort after training")
    for launch in range(launches):
        expected = 7 if (seed + launch) % 3 == 2 else 0
        codes = lines[launch].split() if launch < len(lines) else []
        row.count(
            codes == [str(expected)] * WORKERS, f"launch {launch}: {codes} {(folder / 'said').read_text()[-500:]}"
        )
