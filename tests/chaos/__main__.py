"""`python -m tests.chaos`: all scenarios, and docs/faults.md with --write."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import torch

from equipoise.reproduce.document import machine

from .page import PAGE, page
from .plan import SCENARIOS, run
from .victim import set_patience


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at a time")
    parser.add_argument("--patience", type=float, default=1.0, help="times longer limits, for a busy machine")
    parser.add_argument("--folder", type=Path, help="go on with what was counted there (default: a new folder)")
    parser.add_argument("--write", action="store_true", help="write docs/faults.md")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    set_patience(arguments.patience)
    torch.set_num_threads(1)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(exist_ok=True)
    sums = run(names, arguments.seed, folder, arguments.jobs, lambda words: print(words, file=sys.stderr, flush=True))
    least, most = min(sums.patience), max(sums.patience)
    limits = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    sittings = "in one sitting" if arguments.folder is None else "in several sittings"
    setup = (
        f"{datetime.now(timezone.utc):%d %B %Y}, seed {arguments.seed}, {machine()}: scenarios "
        f"of {sums.seconds / 60:.0f} minutes, {sittings}, with limits of time {limits} times the default."
    )
    text = page(list(sums.rows.values()), setup)
    print(text.split("## Goals\n", 1)[1])
    if arguments.write:
        PAGE.write_text(text)
    if sums.passed and arguments.folder is None:
        shutil.rmtree(folder)
    elif not sums.passed:
        print(f"what the runs said is in {folder}", file=sys.stderr)
    return 0 if sums.passed else 1


if __name__ == "__main__":
    sys.exit(main())
