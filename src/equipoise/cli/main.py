"""The command `equipoise`. Only what a sub-command needs is imported, and torch by none before it must."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ..core.errors import EXIT_CODES, UserError
from .failure import explain
from .parser import Parser, closest

# One line a sub-command: `cli/NAME.py` has `configure(parser)` and `run(arguments) -> exit code`.
COMMANDS = {
    "demo": "the tour: a baseline, the five systems and all of them together; no arguments, no download",
    "train": "train by a recipe: a TOML file, flags, or both",
    "compare": "run several choices with several seeds and say what wins, by how much and why",
    "resume": "go on with a run that was stopped, or longer than it was",
    "report": "one page about one run or several: curves against any axis, workers, recipes",
    "reproduce": "check the papers' claims: what they say, what is measured, pass or fail",
    "cite": "BibTeX for what runs have used",
    "partition": "divide a data set by the workers' speeds, audit the division, compare several",
    "cluster": "measure these machines and their links into a cluster file, or show one",
    "flatness": "measure how flat the loss is around the model of a run",
    "topology": "inspect and draw a topology: its edges, spectral gap, diameter",
    "list": "the methods on every axis, and the options of one",
    "doctor": "check this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code (see `errors.EXIT_CODES`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return dispatch(words)
    except SystemExit as exit:  # argparse, after --help
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
        print(overview())
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
    return module.run(parser.parse(words[1:]))


def overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{words}" for name, words in COMMANDS.items()]
    codes = [f"  {code:<{width}}{words}" for code, words in EXIT_CODES.items()]
    return "\n".join(
        [
            "usage: equipoise COMMAND [ARGUMENTS]",
            "",
            "Train one model on unequal workers, with slow links and uneven data.",
            "",
            "commands (equipoise COMMAND --help says more):",
            *lines,
            "",
            "exit codes:",
            *codes,
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
