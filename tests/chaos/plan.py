"""How many of which faults, over which methods. Each scenario draws from a seed of its own, so that it can be repeated."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from . import checkpoints, churn, disks, goodput, hangs, kills, links, odd_files, own_loops, story
from .count import Sums
from .victim import Victim, patient

LIMIT = 600.0  # seconds of a scenario

Scenario = Callable[[random.Random, Path, Sums], None]


def _syncs(rng: random.Random) -> Iterator[str]:
    """Every sync once before any comes again."""
    while True:
        names = list(story.SYNCS)
        rng.shuffle(names)
        yield from names


def many_kills(rng: random.Random, folder: Path, sums: Sums, least: int = 100) -> None:
    """Runs that are killed again and again, until there were enough."""
    done = 0
    for number, sync in enumerate(_syncs(rng)):
        done += kills.killed_many_times(sync, rng, folder / str(number), sums)
        if done >= least:
            return


def each(function: Callable[..., object], count: int) -> Scenario:
    def run(rng: random.Random, folder: Path, sums: Sums) -> None:
        for number, sync in enumerate(itertools.islice(_syncs(rng), count)):
            function(sync, rng, folder / f"{number}-{sync}", sums)

    return run


def files(function: Callable[..., object], count: int) -> Scenario:
    """Runs are prepared once for each sync."""

    def run(rng: random.Random, folder: Path, sums: Sums) -> None:
        for sync in itertools.islice(itertools.cycle(itertools.islice(_syncs(rng), 8)), count):
            function(sync, rng, folder, sums)

    return run


def odd(rng: random.Random, folder: Path, sums: Sums, count: int = 10_000) -> None:
    for case in odd_files.some(rng, count):
        odd_files.odd_file(case, folder, sums)


def on_hosts(function: Callable[..., object], count: int) -> Scenario:
    def run(rng: random.Random, folder: Path, sums: Sums) -> None:
        with links.hosts() as network:
            each(partial(function, network=network), count)(rng, folder, sums)

    return run


def with_disks(count: int) -> Scenario:
    def run(rng: random.Random, folder: Path, sums: Sums) -> None:
        if not disks.possible():
            raise OSError("small disks cannot be mounted here: run as root")
        each(disks.faulty_disk, count)(rng, folder, sums)

    return run


def under_load(function: Callable[..., object], count: int) -> Scenario:
    def run(rng: random.Random, folder: Path, sums: Sums) -> None:
        with hangs.load():
            each(function, count)(rng, folder, sums)

    return run


def loops(rng: random.Random, folder: Path, sums: Sums, launches: int = 20) -> None:
    own_loops.to_the_end(rng, launches, folder, sums)


def killed_every_50_rounds(rng: random.Random, folder: Path, sums: Sums) -> None:
    for sync in ("periodic-average", "diloco"):
        goodput.killed_every_50_rounds(sync, rng, folder / sync, sums)


# Those that wait the most come first: two run at a time.
SCENARIOS: dict[str, Scenario] = {
    "kills": many_kills,
    "churn": each(churn.churned, len(story.SYNCS)),
    "goodput": killed_every_50_rounds,
    "hangs": each(hangs.stopped_worker, 20),
    "blame": under_load(hangs.blamed_under_load, 16),
    "pauses": each(hangs.paused_worker, 8),
    "links": on_hosts(links.cut_link, 9),
    "elastic-links": on_hosts(links.cut_elastic, 6),
    "disks": with_disks(24),
    "damaged": files(checkpoints.damaged, 16),
    "checkpoints": files(checkpoints.rewritten, 106),
    "odd": odd,
    "own-loops": loops,
}


def counted(name: str, seed: int, folder: Path) -> Sums:
    """Run a scenario here."""
    sums = Sums()
    story.undisturbed("all-reduce")  # imports what is imported late: processes forked from here have it
    SCENARIOS[name](random.Random(f"{seed} {name}"), folder / name, sums)
    return sums


def run(names: list[str], seed: int, folder: Path, jobs: int, say: Callable[[str], None]) -> Sums:
    """Scenarios, so many at a time; their sums in the order of the names.

    What was counted is kept in the folder: a scenario that has come to its end there is not repeated.
    """
    files = {name: folder / f"{name}.json" for name in names}
    waiting = [name for name in names if not files[name].exists()]
    running: dict[str, tuple[float, Victim]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            shutil.rmtree(folder / name, ignore_errors=True)
            running[name] = time.monotonic(), Victim(partial(counted, name, seed, folder), folder / f"said-{name}")
        for name, (began, process) in list(running.items()):
            spent = time.monotonic() - began
            if not process.ended() and spent < patient(LIMIT):
                continue
            outcome = process.wait(1)
            del running[name]
            sums = outcome.value or Sums()
            if outcome.code != 0:
                row = sums.row(f"scenario {name}", "runs to its end")
                row.count(False, f"{outcome.line or outcome} (see {folder}/said-{name})")
            sums.seconds, sums.patience = spent, [patient(1.0)]
            files[name].write_text(sums.dump())
            say(f"{name}: {spent:.0f} s, {sums.summary()}")
        time.sleep(0.1)
    total = Sums()
    for name in names:
        total.merge(Sums.parse(files[name].read_text()))
    return total
