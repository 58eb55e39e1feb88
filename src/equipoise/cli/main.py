"""The command `equipoise`. A sub-command imports only what it needs, and torch as late as possible."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ..core.errors import EXIT_CODES, UserError
from ..core.terminal import say
from .failure import explain
from .parser import Parser, closest

# Name and help of each sub-command. `cli/NAME.py` has `configure(parser)` and `run(arguments) -> exit code`.
COMMANDS = {
    "demo": "compare eight choices on four unequal workers; no arguments, no download",
    "train": "train from a recipe: a TOML file, flags, or both",
    "compare": "run several choices with several seeds; show which wins, by how much and why",
    "plan": "from a cluster file and a goal to a recipe: search the choices on virtual workers",
    "join": "add a worker to an elastic run that is going on",
    "launch": "start workers on several hosts over ssh, or print the file that another launcher needs",
    "resume": "continue a run that was stopped, or extend one that is finished",
    "watch": "show a run while it goes on: in the terminal, or as a page on loopback",
    "report": "write a page about one or several runs: curves, workers, recipes",
    "export": "write the trained weights of a run to a file: pt or safetensors",
    "reproduce": "check the claims of the papers: claim, measurement, pass or fail",
    "cite": "print BibTeX for the methods that runs used",
    "partition": "partition a data set by the speeds of the workers; inspect or compare partitions",
    "cluster": "measure these machines and their links, or show a cluster file",
    "flatness": "measure how flat the loss is around the trained model of a run",
    "topology": "inspect and draw a topology: edges, spectral gap, diameter",
    "list": "list the methods of every axis, or the options of one method",
    "doctor": "check whether this machine can run Equipoise",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `errors.EXIT_CODES`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return dispatch(words)
    except SystemExit as exit:  # raised by argparse after --help
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        print("equipoise: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # such as `equipoise list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return explain(error)


def dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        say(overview())
        return 0
    if name == "--version":
        from .. import __version__

        print(f"equipoise {__version__}")
        return 0
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}: {closest(name, list(COMMANDS))}try equipoise --help")
    module = importlib.import_module(f"equipoise.cli.{name.replace('-', '_')}")
    parser = Parser(prog=f"equipoise {name}", description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.")
    module.configure(parser)
    code: int = module.run(parser.parse(words[1:]))
    return code


def overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{text}" for name, text in COMMANDS.items()]
    codes = [f"  {code:<{width}}{text}" for code, text in EXIT_CODES.items()]
    return "\n".join(
        [
            "usage: equipoise COMMAND [ARGUMENTS]",
            "",
            "Train one model on many unequal workers: stragglers, slow links, non-IID data.",
            "",
            "commands (details: equipoise COMMAND --help):",
            *lines,
            "",
            "exit codes:",
            *codes,
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
