"""`equipoise plan` from start to end: search, finals, other clusters, answer, files."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

from torch import nn

from ..compare.page import bars_of
from ..compare.plan import locked
from ..config.build import objects
from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.terminal import say
from ..core.torchrun import under_torchrun
from ..loop.from_recipe import seeded
from ..simulate.cluster import Cluster
from .answer import answer, write
from .goal import Goal
from .halving import Search, Stopped
from .retime import retimed


def plan(
    recipe: Recipe,
    out: Path,
    *,
    minutes: float = 10.0,
    minimise: str = "time",
    within: str | None = None,
    price: float | None = None,
    seeds: int = 3,
    jobs: int | None = None,
    quiet: bool = False,
) -> tuple[int, list[Path]]:
    """Search, print the answer, and write it. Returns the exit code and the files."""
    if under_torchrun():
        raise UserError("the search simulates its workers: run it without torchrun")
    cluster = Cluster.load(recipe.settings["cluster"])
    if cluster.size < 2:
        raise UserError(f"{recipe.settings['cluster']} has one worker: there is nothing to choose")
    if recipe.settings.get("workers", cluster.size) != cluster.size:
        raise UserError(
            f"--workers {recipe.settings['workers']}: {recipe.settings['cluster']} has {cluster.size} workers, and the "
            "recipe is for them"
        )
    goal = Goal.of(recipe.settings.get("until"), within, minimise, price, cluster.size)
    with locked(out):
        kept = out / "cluster.toml"
        cluster.save(kept)
        fixed = recipe.merged({"cluster": str(kept), "virtual": True, "workers": cluster.size})
        methods = objects(fixed)
        loaded = methods["data"].load()
        search = Search(
            fixed,
            cluster,
            goal,
            out,
            examples=len(loaded.train),
            parameters=_parameters(seeded(methods["model"], loaded, 0)()),
            minutes=minutes,
            jobs=jobs,
            quiet=quiet,
        )
        try:
            search.candidates()
            finals = search.finals(seeds)
            variants = retimed(search) if goal.until is not None and finals else []
        except Stopped as stopped:
            return stopped.code, []
        if not finals:
            raise UserError(_nothing(search))
        found = answer(search, finals, variants, price)
        print(f"Goal: {goal.name}; {len(search.best)} candidates, {len(finals)} final runs.\n", file=sys.stderr)
        for sentence in found.sentences:
            say(sentence)
        paths = write(found, search)
        from ..report.page import write_page

        done = [
            run
            for row in found.rows
            for run in finals
            if run.combination.name == row.name and (run.folder / "result.json").is_file()
        ]
        command = f"equipoise train {shlex.quote(str(out / 'recipe.toml'))}"
        paths += write_page(
            [run.folder for run in done],
            out / "report.html",
            title=out.resolve().name,
            sentence=" ".join(found.sentences),
            table=found.table,
            choices=[run.combination.name for run in done],
            times=bars_of(found.rows, search.criterion),
            command=command,
        )
        say(f"\nto run it on your machines, or under torchrun on each host:\n  {command}")
    return 0, paths


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _nothing(search: Search) -> str:
    best = search.ranking()[0]
    value = -best.score[1] if search.goal.metric == "accuracy" else best.score[1]
    least = min(math.inf, best.run.result["simulated_seconds"])
    return (
        f"no candidate reached {search.goal.until}: the closest, {best.candidate.name}, had {search.goal.metric} "
        f"{value:.3g} after {least:.3g} simulated s. Give the search more --minutes, or choose a target that a single "
        "worker can reach"
    )
