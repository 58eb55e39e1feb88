"""`equipoise launch --hosts FILE -- train RECIPE.toml --out RUN`"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..core.errors import UserError
from .parser import Parser

_PORT = 29400
_DESCRIPTION = """Every host needs Equipoise in the same version, and the data. No folder has to be shared: each host
keeps the checkpoints of its own workers under --out, in the folder given by --dir, and `resume` finds them there. The
first host is where the others meet. Ctrl-C stops all workers after a checkpoint.

hosts.txt:
  node1 slots=4     # as ssh takes it, and how many workers it has (1)
  me@10.0.0.2

examples:
  equipoise launch --hosts hosts.txt -- train recipe.toml --out runs/mine
  equipoise launch --hosts hosts.txt -- resume runs/mine --epochs 20
  equipoise launch --print slurm --nodes 4 --slots 8 -- train recipe.toml --out runs/mine
"""


def configure(parser: Parser) -> None:
    from ..launch.files import PRINTED
    from ..launch.hosts import SSH

    parser.usage = "equipoise launch (--hosts FILE | --print KIND --nodes N) [flags] -- COMMAND ..."
    parser.epilog = _DESCRIPTION
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="train or resume, with its flags")
    parser.add_argument("--hosts", metavar="FILE", help="a host per line, the first one is where the others meet")
    parser.add_argument("--print", dest="kind", choices=list(PRINTED), help="print what another launcher needs")
    parser.add_argument("--nodes", type=int, default=2, help="for --print without --hosts (2)")
    parser.add_argument("--slots", type=int, default=1, help="workers per node, for --print without --hosts (1)")
    parser.add_argument("--ssh", default=SSH, metavar="COMMAND", help=f"how to reach a host ({SSH})")
    parser.add_argument("--dir", metavar="FOLDER", help="the working folder on every host (this one's name)")
    parser.add_argument("--python", default="python3", help="the interpreter on every host (python3)")
    parser.add_argument("--port", type=int, default=_PORT, help=f"of the first host, where workers meet ({_PORT})")


def run(arguments: argparse.Namespace) -> int:
    from ..launch.files import PRINTED
    from ..launch.hosts import Host, read_hosts, run_on_hosts

    words = list(arguments.command)
    if words[0] not in ("train", "resume"):
        raise UserError(f"launch {words[0]}: only train and resume have workers; write `-- train ...`")
    if words[0] == "train" and "--out" not in words and not any(word.startswith("--out=") for word in words):
        raise UserError("every host needs the folder of the run: add --out FOLDER after train")
    if not 0 < arguments.port < 65536:
        raise UserError(f"--port {arguments.port}: takes a number from 1 to 65535")
    if arguments.hosts is not None:
        hosts = read_hosts(Path(arguments.hosts))
    elif arguments.kind is None:
        raise UserError("say where: --hosts FILE with a host per line, or --print KIND for another launcher")
    elif min(arguments.nodes, arguments.slots) < 1:
        raise UserError("--nodes and --slots must be at least 1")
    else:
        hosts = [Host(f"HOST{number}", arguments.slots) for number in range(arguments.nodes)]
    program = ["equipoise", *words]
    if arguments.kind is not None:
        print(PRINTED[arguments.kind](hosts, program, arguments.port))
        return 0
    folder = arguments.dir if arguments.dir is not None else os.getcwd()
    program = [arguments.python, "-m", *program]
    return run_on_hosts(hosts, program, ssh=arguments.ssh, folder=folder, port=arguments.port)
