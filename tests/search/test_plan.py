"""`equipoise plan`: the space, the halving on a made-up problem, and the command from start to end."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.cli.main import main
from equipoise.compare.table import rows_of
from equipoise.config.recipe import Recipe
from equipoise.core.errors import UserError
from equipoise.search.answer import BYTES, SECONDS, in_order, in_units
from equipoise.search.finals import behind, interval, preferred, remaining
from equipoise.search.goal import Goal
from equipoise.search.halving import Search, Trial
from equipoise.search.retime import Variant, sentences, variants
from equipoise.search.space import LR_STEP, Candidate, followed, neighbours, pilots, rates, starts, usable
from equipoise.simulate.cluster import Cluster, Link

UNEQUAL = Cluster([1000.0, 1000.0, 2000.0, 4000.0], Link(1e8, 1e-3))
TARGET = Goal.of("accuracy=0.9", None, "time", None, 4)


def test_the_space_keeps_what_the_user_chose() -> None:
    recipe = Recipe.from_dict({"sync": "diloco", "wire": "int8", "lr": 0.2, "workers": 4})
    found = starts(recipe, UNEQUAL)
    near = usable((n for c in found for n in neighbours(c, recipe, UNEQUAL)), recipe)
    assert {c.sync for c in found} == {"diloco"}
    assert not pilots(recipe, UNEQUAL)
    assert {(c.table["wire"]["name"], c.table["lr"]) for c in [*found, *near]} == {("int8", 0.2)}
    assert {c.table["period"]["steps"] for c in near} >= {8, 32, 128}


def test_blocks_and_batches_follow_unequal_speeds_only() -> None:
    recipe = Recipe.from_dict({"workers": 4})
    assert all(c.table["partition"]["speeds"] == [1, 1, 2, 4] for c in starts(recipe, UNEQUAL))
    assert not any("partition" in c.table for c in starts(recipe, Cluster([1000.0] * 4)))
    assert not any("batch" in c.table for c in starts(recipe.merged({"partition": "sorted"}), UNEQUAL))


@pytest.mark.parametrize(("latency", "more"), [(0.0, set()), (0.1, set()), (0.2, {(2, 2)})])
def test_rounds_and_period_that_suit_the_links_are_among_the_starts(
    latency: float, more: set[tuple[int, int]], tmp_path: Path
) -> None:
    """A step takes 0.032 s. On fast links they are those of the graph, 2 rounds after every step."""
    Cluster([1000.0] * 8, Link(latency=latency)).save(tmp_path / "cluster.toml")
    given = {"sync": "detag", "workers": 8, "cluster": str(tmp_path / "cluster.toml"), "batch": 32}
    recipe = Recipe.from_dict(given)
    found = starts(recipe, Cluster.load(tmp_path / "cluster.toml"))
    pairs = {(c.table["sync"].get("rounds"), c.table["period"]["steps"]) for c in found}
    assert pairs == {(None, 1), (None, 16)} | more
    assert len({c.name for c in found}) == len(found)
    for fixed in ({"period": 2}, {"sync": {"rounds": 4}}):
        kept = starts(recipe.merged(fixed), UNEQUAL)
        assert len(kept) == (1 if "period" in fixed else 2)


def test_rates_lie_on_one_grid() -> None:
    """Two walks that meet meet at the same numbers, and 8 notches are a factor of ten."""
    assert rates(0.1, -LR_STEP, LR_STEP, 2 * LR_STEP) == [0.032, 0.32, 1.0]
    for first in (1e-3, 0.1, 0.3, 7.0):
        there = rates(first, 1, 2, 4, 8)
        assert [rates(lr, -n)[0] for lr, n in zip(there, (1, 2, 4, 8), strict=True)] == rates(first, 0) * 4
        assert there == sorted(there)
        assert there[-1] == pytest.approx(10 * rates(first, 0)[0])


def test_blocks_that_follow_speeds_follow_those_of_another_cluster() -> None:
    recipe = Recipe.from_dict({"workers": 4})
    candidate = starts(recipe, UNEQUAL)[0]
    slower = Cluster([1000.0, 1000.0, 1000.0, 3000.0])
    assert followed(candidate, recipe, slower).table["partition"]["speeds"] == [1, 1, 1, 3]
    assert not {"partition", "batch"} & {*followed(candidate, recipe, Cluster([1.0] * 4)).table}
    other = candidate.but(batch={"name": "norm-test"}, partition=None)
    assert followed(other, recipe, slower) == other


def test_names_tell_candidates_apart() -> None:
    recipe = Recipe.from_dict({"workers": 4})
    found = starts(recipe, UNEQUAL)
    found += [n for c in list(found) for n in neighbours(c, recipe, UNEQUAL)]
    by_name: dict[str, Candidate] = {}
    for candidate in found:
        assert by_name.setdefault(candidate.name, candidate).table == candidate.table


class MadeUp(Search):
    """Runs cost nothing here: the time to the target is known for every candidate."""

    def __init__(self, tmp_path: Path, seconds: dict[str, float], minutes: float = 1e9):
        self.now, self.known, self.simulated = 0.0, seconds, 0.0
        self.luck: dict[int, dict[str, float]] = {}  # by seed and sync
        recipe = Recipe.from_dict({"workers": 4})
        super().__init__(
            recipe, UNEQUAL, TARGET, tmp_path, examples=8000, parameters=1000, minutes=minutes, clock=lambda: self.now
        )

    def run(self, runs: list[Any], over: Any) -> None:
        for run in runs:
            if over():
                return
            need = self.needs(run.recipe) * self.luck.get(run.seed, {}).get(str(run.recipe.chosen("sync").name), 1.0)
            budget = float(run.recipe.settings["budget"].removesuffix("s"))
            spent = min(need, budget)
            self.now, self.simulated = self.now + 1, self.simulated + spent
            run.result = {"simulated_seconds": spent, "samples": int(1e4 * spent), "bytes": 1, "models": {}}
            run.result["models"]["mean"] = {"accuracy": 0.9 * spent / need, "loss": 1.0}
            cost = {"simulated_seconds": need, "step": 1, "rounds": 1, "bytes": 1, "samples": int(1e4 * need)}
            run.result |= {"reached": cost if need <= budget else None, "workers": []}
            run.state = "done"

    def needs(self, recipe: Recipe) -> float:
        """Best at lr 0.9; each wire and sync has its factor."""
        lr = 1 + abs(math.log(recipe.plain()["lr"] / 0.9))
        return lr * math.prod(self.known.get(str(recipe.chosen(axis).name), 1.0) for axis in ("sync", "wire", "order"))


def test_halving_and_walking_find_the_best_of_a_known_problem(tmp_path: Path) -> None:
    """The best combination is no start: it takes the right sync, then its wire and its learning rate."""
    search = MadeUp(tmp_path, {"lgrawa": 4.0, "int8": 0.8, "cd-grab": 3.0, "diloco": 9.0, "periodic-average": 6.0})
    search.known |= {"all-reduce": 20.0, "d-psgd": 12.0, "edm": 12.0}
    search.candidates()
    best = search.ranking()[0]
    assert best.candidate.table["sync"]["name"] == "lgrawa"
    assert best.candidate.table["wire"]["name"] == "int8"
    assert best.candidate.table["lr"] == 1.0  # of those a notch apart, the nearest to 0.9
    assert best.score == (0.0, pytest.approx(3.2 * (1 + math.log(1 / 0.9))))


def test_runs_end_when_they_cannot_win_any_more(tmp_path: Path) -> None:
    search = MadeUp(tmp_path, {})
    search.candidates()
    best = float("inf")
    for rung in search.rungs:
        if rung.what.startswith("neighbours"):
            assert rung.seconds <= 1.2 * best
            assert all(t.run.result["simulated_seconds"] <= rung.seconds for t in rung.trials)
        best = min([best, *(t.score[1] for t in rung.trials if t.reached)])
    assert search.rungs[-1].what.startswith("neighbours")


def test_syncs_survive_the_first_rung_only(tmp_path: Path) -> None:
    """The better half of all, and the best one of every sync; from then on the better half of those."""
    search = MadeUp(tmp_path, {"all-reduce": 1e4, "lgrawa": 1e4, "diloco": 1e4, "d-psgd": 1e5})
    search.recipe = search.recipe.merged({"order": "reshuffle"})
    candidates = starts(search.recipe, UNEQUAL)
    search.halve(candidates, 1.0, 4.0)
    assert [rung.seconds for rung in search.rungs] == [1.0, 2.0, 4.0][: len(search.rungs)]
    first, second, *_ = [[trial.candidate for trial in rung.trials] for rung in search.rungs]
    half = max(4, -(-len(first) // 2))
    assert {c.name for c in first[:half]} <= {c.name for c in second}
    assert {c.sync for c in second} == {c.sync for c in first}
    assert len(second) < len(first)


def test_runs_that_went_on_come_before_those_that_were_cut(tmp_path: Path) -> None:
    search = MadeUp(tmp_path, {})
    names = ("cut", "long", "reached")
    table = starts(search.recipe, UNEQUAL)[0]
    for name, seconds, score in zip(names, (1.0, 4.0, 2.0), ((1.0, -0.8), (1.0, -0.5), (0.0, 9.0)), strict=True):
        search.best[name] = Trial(table, search.planned(table, seconds, 0, name), score)
    assert [trial.score for trial in search.ranking()] == [(0.0, 9.0), (1.0, -0.5), (1.0, -0.8)]


def test_luck_with_one_seed_does_not_lead_the_walk(tmp_path: Path) -> None:
    """DiLoCo takes half of its time with the first seed, and is slower than averages in the mean of two."""
    search = MadeUp(tmp_path, {"diloco": 1.5, "lgrawa": 9.0, "all-reduce": 9.0, "d-psgd": 9.0, "edm": 9.0})
    search.luck = {0: {"diloco": 0.5}}
    search.candidates()
    assert search.ranking()[0].candidate.sync == "periodic-average"
    assert search.ranking()[0].seeds == 2
    assert {t.candidate.sync for rung in search.rungs if "second" in rung.what for t in rung.trials} >= {"diloco"}


def test_the_minutes_bound_the_search_and_leave_some_for_seeds(tmp_path: Path) -> None:
    search = MadeUp(tmp_path, {}, minutes=1.0)  # a run takes a second
    search.candidates()
    assert search.now <= 41
    finals = search.finals(3)
    assert finals
    assert search.now <= 61


def test_a_target_before_the_first_round_costs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean that reached it must be had; the checkpoints of a run that is done are removed."""
    search = Search(
        Recipe.from_dict({"workers": 4}), UNEQUAL, TARGET, tmp_path, examples=8000, parameters=1000, minutes=1
    )
    runs = [search.planned(c, 1.0, 0, "part") for c in starts(search.recipe, UNEQUAL)[:2]]

    def run_all(runs: list[Any], *rest: Any, **how: Any) -> int:
        for rounds, run in enumerate(runs):
            (run.folder / "checkpoints" / "step-3").mkdir(parents=True)
            cost = {"simulated_seconds": 2.0, "bytes": 10, "rounds": rounds}
            run.result, run.state = {**cost, "reached": dict(cost)}, "done"
        return 0

    monkeypatch.setattr("equipoise.search.halving.run_all", run_all)
    search.run(runs, over=lambda: False)
    mean = 6 * (1e-3 + 8 * 1000 / (0.93 * 1e8))  # 2 (N - 1) messages of a quarter of 4,000 bytes
    assert [search.goal.score(run.result, run.folder) for run in runs] == [(0.0, pytest.approx(2 + mean)), (0.0, 2.0)]
    assert [run.result["reached"]["bytes"] for run in runs] == [10 + 6 * 4000, 10]
    assert not any((run.folder / "checkpoints").exists() for run in runs)


def test_finalists_that_seeds_do_not_tell_apart_get_more(tmp_path: Path) -> None:
    search = MadeUp(tmp_path, {"diloco": 0.5})  # its periods do not matter here: they tie
    search.candidates()
    runs = search.finals(2)
    names = [run.combination.name for run in runs]
    assert sorted(names.count(name) for name in {*names}) == [2, 6, 6, 6, 6]
    assert {run.seed for run in runs} == {2, 3, 4, 5, 6, 7}  # and none of the search
    assert search.standing[-1].startswith("periodic-average")
    assert {*search.standing} == {*names}


def test_those_that_drop_out_stay_behind(tmp_path: Path) -> None:
    """The first seeds are easy for all: the mean of those that have no others is the least."""
    search = MadeUp(tmp_path, {"diloco": 0.5, "periodic-average": 0.6})
    search.luck = {seed: {"diloco": 1.5, "periodic-average": 1.5} for seed in (4, 5, 6, 7)}
    search.candidates()
    runs = search.finals(2)
    rows = rows_of(runs, search.criterion)
    assert rows[0].name.startswith("periodic-average")
    assert [row.name for row in in_order(rows, search.standing)] == search.standing
    assert search.standing[0].startswith("diloco")
    assert [row.rank for row in in_order(rows, search.standing)] == [1, 2, 3, 4, 5]


def test_a_seed_that_is_cut_short_counts_for_none(tmp_path: Path) -> None:
    search = MadeUp(tmp_path, {"diloco": 0.5})
    search.candidates()
    search.minutes = (search.now + 10 + 2) / 60  # two seeds of five finalists, and half of a third
    runs = search.finals(2)
    assert {run.seed for run in runs} == {2, 3}
    assert len(runs) == 10


def test_choices_are_compared_seed_by_seed() -> None:
    """Seeds differ by a factor of two, the second choice is always 10 % slower: that is clear."""
    first = {1: 1.0, 2: 2.0, 3: 1.5}
    slower = {seed: 1.1 * cost for seed, cost in first.items()}
    assert behind(first, slower)
    assert not behind(slower, first)
    assert not behind(first, {seed: 1.04 * cost for seed, cost in first.items()}), "below the margin"
    assert not behind(first, {1: 1.5, 2: 1.6, 3: 1.9}), "faster with one seed"
    wide = {seed: 1.05 if seed % 2 else 1.25 for seed in range(9)}
    assert behind(dict.fromkeys(range(9), 1.0), wide), "nine seeds tell what three would not"
    assert not behind(dict.fromkeys(range(2), 1.0), {0: 1.25, 1: 1.0}), "two standard errors"
    assert behind(first, {**slower, 3: math.inf})
    assert remaining({"a": slower, "b": first, "c": {**first, 2: math.inf}}) == ["b"]
    assert not remaining({"a": {1: math.inf}})


def test_within_the_margin_the_steadier_one_is_preferred() -> None:
    wild, steady = {1: 0.5, 2: 1.0, 3: 1.5}, {1: 1.02, 2: 1.03, 3: 1.04}
    assert preferred({"wild": wild, "steady": steady}) == ["steady", "wild"]
    assert preferred({"steady": {seed: 1.1 * cost for seed, cost in steady.items()}, "wild": wild})[0] == "wild"
    assert preferred({"missed": {1: math.inf}, "wild": wild}) == ["wild", "missed"]


def test_a_finalist_of_another_sync_is_among_them(tmp_path: Path) -> None:
    search = MadeUp(tmp_path, {"lgrawa": 0.9, "diloco": 0.8})
    search.candidates()
    names = [trial.candidate.sync for trial in search.finalists()]
    assert names[0] == "diloco"
    assert len({*names}) > 1


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_four_of_five_new_runs_lie_in_the_interval(seeds: int) -> None:
    """2,000 draws: the standard error of the share is 0.009."""
    generator = np.random.default_rng(seeds)
    times = np.exp(generator.normal(1.0, 0.3, (2000, seeds + 1)))
    bounds = [interval(list(row[:-1]), 0.0) for row in times]
    share = np.mean([low <= row[-1] <= high for (low, high), row in zip(bounds, times, strict=True)])
    assert abs(share - 0.8) < 0.036


def test_what_the_simulation_leaves_out_widens_the_interval() -> None:
    assert interval([2.0], 0.1) == pytest.approx((2.0 / 1.1, 2.2))
    assert interval([2.0, 2.0, 2.0], 0.1) == pytest.approx((2.0 / 1.1, 2.2))


def test_goals() -> None:
    assert Goal.of(None, "2 GB", "time", None, 4).bytes == 2e9
    assert Goal.of(None, "10 min", "time", None, 4).seconds == 600
    assert Goal.of(None, "90 s", "time", None, 4).name == "the best model within 1.5 min"
    assert Goal.of(None, "500 kB", "time", None, 4).name == "the best model within 500 kB"
    assert Goal.of(None, "8 USD", "time", 2.0, 4).seconds == Goal.of(None, "8 EUR", "time", 2.0, 4).seconds == 3600
    for arguments, words in (
        ((None, None, "time", None, 4), "say what the goal is"),
        (("accuracy=0.9", "1 h", "time", None, 4), "say what the goal is"),
        ((None, "5 USD", "time", None, 4), "--price"),
        (("accuracy=0.9", None, "speed", None, 4), "--minimise speed"),
        ((None, "5 parsecs", "time", None, 4), "--within"),
        ((None, "-3 s", "time", None, 4), "above zero"),
        ((None, "0 EUR", "time", 1.0, 4), "above zero"),
        ((None, "2 GB", "bytes", None, 4), "goes with --until"),
    ):
        with pytest.raises(UserError, match=words):
            Goal.of(*arguments)


def test_other_clusters_and_what_they_change() -> None:
    found = dict(variants(UNEQUAL))
    assert found["with links of 1 Gbit"].link.bandwidth == 1e9
    assert found["with equal workers"].rates == [2000.0] * 4
    assert not variants(Cluster([1.0, 1.0]))
    texts = sentences([Variant("with links of 1 Gbit", [("a", 1.0), ("b", 2.0)]), Variant("later", [("b", 1.0)])], "b")
    assert texts == ["With links of 1 Gbit a wins: 1 s against 2 s.", "It also wins later."]
    near = [Variant("here", [("a", 1.0), ("b", 1.09)]), Variant("there", [("a", 1.0), ("b", 1.2)])]
    assert sentences(near, "b") == ["There a wins: 1 s against 1.2 s.", "It also wins here."], "a tenth tells nothing"


def test_all_links_change_together() -> None:
    """Those of pairs and of sites too, also where only they are limited."""
    links = {"between": {(0, 1): Link(1e7)}, "across": {("a", "b"): Link(1e6, 1e-2)}}
    cluster = Cluster([1.0] * 3, sites=["a", "a", "b"], **links)
    assert [words for words, _ in variants(cluster)] == ["with links ten times as fast", "with links ten times as slow"]
    for (_, changed), factor in zip(variants(cluster), (10.0, 0.1), strict=True):
        assert changed.between[0, 1].bandwidth == pytest.approx(factor * 1e7)
        assert changed.across["a", "b"].bandwidth == pytest.approx(factor * 1e6)
        assert changed.across["a", "b"].latency == 1e-2
        assert math.isinf(changed.link.bandwidth)


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [(1234567, BYTES, "1.2 MB"), (164.9e3, BYTES, "160 kB"), (0.734, SECONDS, "730 ms"), (61.0, SECONDS, "1.0 min")],
)
def test_in_units(value: float, units: Any, text: str) -> None:
    assert in_units(value, units) == text


def test_the_command_writes_a_recipe_whose_time_is_as_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    UNEQUAL.save("cluster.toml")
    fixed = ["--model", "logistic", "--data.limit", "400", "--sync", "periodic-average", "--wire", "float32"]
    words = [
        "plan",
        "--cluster",
        "cluster.toml",
        "--until",
        "accuracy=0.8",
        *fixed,
        "--lr",
        "0.3",
        "--order",
        "reshuffle",
    ]
    assert main([*words, "--minutes", "5", "--seeds", "2", "--price", "1", "--out", "p", "--quiet"]) == 0
    said = capsys.readouterr().out
    content = json.loads(Path("p/plan.json").read_text())
    assert said.startswith("Run periodic-average")
    assert "Runner-up" in said
    assert "in money" in said
    assert content["answer"] == said.split("\n\n")[0].splitlines()
    assert content["other_clusters"]
    assert content["interval"][0] < content["seconds"] < content["interval"][1]
    assert "equipoise train p/recipe.toml</code>" in Path("p/report.html").read_text()
    assert Path("p/runner-up.toml").is_file()

    assert main(["train", "p/recipe.toml", "--dry-run"]) == 0
    words = ["train", "p/recipe.toml", "--cluster", "cluster.toml", "--virtual", "--out", "again", "--quiet"]
    assert main([*words, "--seed", "2"]) == 0
    again = json.loads(Path("again/result.json").read_text())["reached"]
    folder = Path("p/runs") / re.sub("[, ]+", "-", content["finals"][0]["choice"]) / "finals-seed-2"
    assert (
        again["simulated_seconds"] == json.loads((folder / "result.json").read_text())["reached"]["simulated_seconds"]
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "accuracy=0.9"], "--cluster FILE"),
        (["--cluster", "c.toml"], "say what the goal is"),
        (["--cluster", "c.toml", "--until", "accuracy=0.9", "--budget", "3s"], "--within"),
        (["--cluster", "c.toml", "--until", "accuracy=0.9", "--minutes", "soon"], "--minutes soon"),
        (["--cluster", "one.toml", "--until", "accuracy=0.9"], "one worker"),
        (["--cluster", "c.toml", "--until", "accuracy=0.9", "--workers", "5"], "has 4 workers"),
    ],
)
def test_mistakes_are_named(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    UNEQUAL.save("c.toml")
    Cluster([1.0]).save("one.toml")
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err
