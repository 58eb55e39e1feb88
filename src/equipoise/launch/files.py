"""The file, or the commands, that other launchers need to start the workers of a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from .hosts import Host

NAME = "equipoise"


def torchrun(hosts: list[Host], words: list[str], port: int) -> str:
    """One command for each host."""
    lines = ["# One line per host, to be run there. The numbers of workers are those of the hosts file."]
    for number, host in enumerate(hosts):
        where = f"--nnodes {len(hosts)} --node-rank {number} --nproc-per-node {host.slots}"
        lines.append(f"# {host.name}")
        lines.append(f"torchrun {where} --master-addr {hosts[0].name} --master-port {port} -m {shlex.join(words)}")
    return "\n".join(lines)


def slurm(hosts: list[Host], words: list[str], port: int) -> str:
    """A script for sbatch."""
    told = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS"
    told += " LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE"
    return f"""#!/bin/bash
#SBATCH --job-name={NAME}
#SBATCH --nodes={len(hosts)}
#SBATCH --ntasks-per-node={hosts[0].slots}
#SBATCH --signal=TERM@60
# SIGTERM a minute before the end of the allocation: a checkpoint is written, and `equipoise resume` goes on from it.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT={port}
export OMP_NUM_THREADS=1
srun bash -c '{told} exec python -m {_quoted(words)}'"""


def kubernetes(hosts: list[Host], words: list[str], port: int) -> str:
    """An indexed Job, one pod per host, and the service by which pods find the first of them."""
    line = _by_torchrun(hosts, words, port, "$JOB_COMPLETION_INDEX", str(len(hosts)), f"{NAME}-0.{NAME}")
    return f"""# Pods need each other on all ports, and nobody else may reach them: see docs/hosts.md.
apiVersion: v1
kind: Service
metadata:
  name: {NAME}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: {NAME}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {NAME}
spec:
  completions: {len(hosts)}
  parallelism: {len(hosts)}
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      subdomain: {NAME}
      restartPolicy: Never
      containers:
        - name: worker
          image: IMAGE  # with equipoise installed
          command: ["sh", "-c", {_yaml(line)}]
          workingDir: /runs
          volumeMounts:
            - name: runs
              mountPath: /runs
      volumes:
        - name: runs
          hostPath:  # each node keeps the checkpoints of its own workers; or a volume that all pods share
            path: /var/lib/{NAME}
            type: DirectoryOrCreate"""


def skypilot(hosts: list[Host], words: list[str], port: int) -> str:
    """A task for `sky launch`."""
    first = '$(echo "$SKYPILOT_NODE_IPS" | head -n1)'
    line = _by_torchrun(hosts, words, port, "$SKYPILOT_NODE_RANK", "$SKYPILOT_NUM_NODES", first)
    return f"""name: {NAME}
num_nodes: {len(hosts)}
setup: |
  pip install equipoise
run: |
  {line}"""


def dstack(hosts: list[Host], words: list[str], port: int) -> str:
    """A task for `dstack apply`."""
    line = _by_torchrun(hosts, words, port, "$DSTACK_NODE_RANK", "$DSTACK_NODES_NUM", "$DSTACK_MASTER_NODE_IP")
    return f"""type: task
name: {NAME}
nodes: {len(hosts)}
python: "3.12"
commands:
  - pip install equipoise
  - {_yaml(line)}"""


PRINTED: dict[str, Callable[[list[Host], list[str], int], str]] = {
    "torchrun": torchrun,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "skypilot": skypilot,
    "dstack": dstack,
}


def _by_torchrun(hosts: list[Host], words: list[str], port: int, rank: str, size: str, first: str) -> str:
    where = f"--nnodes {size} --node-rank {rank} --nproc-per-node {hosts[0].slots}"
    return f"torchrun {where} --master-addr {first} --master-port {port} -m {shlex.join(words)}"


def _quoted(words: list[str]) -> str:
    """Inside single quotes of a shell."""
    return shlex.join(words).replace("'", "'\\''")


def _yaml(line: str) -> str:
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'
