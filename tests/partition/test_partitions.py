"""Who owns which examples: properties of every partition, and small ones by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.core.errors import DataError, UserError
from equipoise.data.source import Source
from equipoise.partition import IID, Contiguous, DatasetView, Dirichlet, FromFile, Partition, Shards, Sorted
from equipoise.partition.from_file import write_blocks

CHOICES = [
    IID(),
    Contiguous(),
    Sorted(),
    Sorted(shuffled=0.3),
    Sorted(shuffled=1.0),
    Sorted(shuffled=0.3, reading="uniform"),
    Sorted(shuffled=1.0, reading="uniform"),
    Shards(),
    Shards(per_worker=5),
    Dirichlet(),
    Dirichlet(alpha=0.01),
    Dirichlet(alpha=1e9),
]
EVEN = [c for c in CHOICES if not isinstance(c, (Dirichlet, Shards))]


def view(labels: list[int]) -> DatasetView:
    return DatasetView(len(labels), np.array(labels))


labelled = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def classes(block: np.ndarray, labels: np.ndarray) -> dict[int, int]:
    return dict(Counter(labels[block].tolist()))


# -- every partition ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", CHOICES, ids=repr)
@given(labels=labelled, workers=st.integers(1, 12), seed=st.integers(0, 3))
def test_every_example_has_one_owner_and_every_worker_an_example(
    choice: Partition, labels: list[int], workers: int, seed: int
) -> None:
    if workers > len(labels):
        with pytest.raises(
            UserError, match=f"{workers} workers but only {len(labels)} examples: use at most {len(labels)} workers"
        ):
            choice.blocks(view(labels), workers, seed)
        return
    blocks = choice.blocks(view(labels), workers, seed)
    assert len(blocks) == workers
    assert all(len(b) >= 1 and b.dtype == np.int64 for b in blocks)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(labels)))
    if choice in EVEN:
        sizes = [len(b) for b in blocks]
        assert max(sizes) - min(sizes) <= 1
    again = choice.blocks(view(labels), workers, seed)
    assert all(np.array_equal(a, b) for a, b in zip(blocks, again, strict=True)), (
        "a pure function of data, workers and seed"
    )


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_the_seed_decides_where_there_is_chance(choice: Partition) -> None:
    labels = [i % 7 for i in range(200)]
    one, other = (np.concatenate(choice.blocks(view(labels), 5, seed)) for seed in (0, 1))
    chance = not (isinstance(choice, Contiguous) or choice == Sorted())
    assert np.array_equal(one, other) != chance


@pytest.mark.parametrize("choice", [Sorted(), Shards(), Dirichlet()])
def test_classes_are_needed(choice: Partition) -> None:
    name = type(choice).__name__.lower()
    with pytest.raises(UserError, match=f"partition {name} needs one class label per example.*use iid or contiguous"):
        choice.blocks(DatasetView(10), 2, 0)
    with pytest.raises(UserError, match="needs one class label"):
        choice.blocks(Source((torch.randn(10, 2), torch.randn(10, 1))).view(), 2, 0)


@pytest.mark.parametrize("workers", [0, -3])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(UserError, match=f"workers = {workers}"):
        IID().blocks(DatasetView(10), workers, 0)


def test_a_partition_that_loses_examples_is_caught() -> None:
    class Careless(Contiguous):
        def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
            return [block[:-1] for block in super().split(view, workers, rng)]

    with pytest.raises(AssertionError, match="Careless must give every example to exactly one worker"):
        Careless().blocks(DatasetView(10), 2, 0)


def test_nobody_is_left_empty() -> None:
    """With a tiny alpha one worker gets all of the class: each of the others receives one example of it."""
    blocks = Dirichlet(alpha=1e-6).blocks(view([0] * 10), 4, 0)
    assert sorted(len(b) for b in blocks) == [1, 1, 1, 7]


# -- by hand ------------------------------------------------------------------------------------------------------
def test_contiguous_by_hand() -> None:
    assert [b.tolist() for b in Contiguous().blocks(DatasetView(7), 3, 0)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_iid_is_a_shuffle() -> None:
    blocks = IID().blocks(DatasetView(1000), 4, 0)
    assert [len(b) for b in blocks] == [250] * 4
    # Each block is a sample of all: its mean is within five standard errors, 289 / sqrt(250), of the mean of all.
    assert all(abs(b.mean() - 499.5) < 5 * 289 / 250**0.5 for b in blocks)


LABELS = [2, 0, 1, 0, 2, 1, 0, 1, 2, 0]  # four 0s at 1 3 6 9, three 1s at 2 5 7, three 2s at 0 4 8


def test_sorted_by_hand() -> None:
    """Equal labels keep the order in which they lie."""
    assert [b.tolist() for b in Sorted().blocks(view(LABELS), 3, 0)] == [[1, 3, 6, 9], [2, 5, 7], [0, 4, 8]]


@pytest.mark.parametrize("seed", range(3))
def test_sorted_with_a_shuffled_prefix_by_hand(seed: int) -> None:
    """The first 50 % of the sorted list, 1 3 6 9 2, are shuffled among themselves; the rest stays as it is."""
    blocks = Sorted(shuffled=0.5).blocks(view(LABELS), 2, seed)
    assert sorted(blocks[0].tolist()) == [1, 2, 3, 6, 9]
    assert blocks[1].tolist() == [5, 7, 0, 4, 8]
    three = np.concatenate(Sorted(shuffled=0.5).blocks(view(LABELS), 3, seed)).tolist()
    assert sorted(three[:5]) == [1, 2, 3, 6, 9]
    assert three[5:] == [5, 7, 0, 4, 8]


@pytest.mark.parametrize("seed", range(3))
def test_sorted_with_a_uniform_part_by_hand(seed: int) -> None:
    """Five random examples are spread evenly, 2 and 3; the other five stay sorted by label and are cut, 3 and 2."""
    labels = np.array(LABELS)
    blocks = Sorted(shuffled=0.5, reading="uniform").blocks(view(LABELS), 2, seed)
    assert [len(b) for b in blocks] == [5, 5]
    kept = np.concatenate([blocks[0][:3], blocks[1][:2]])
    assert labels[kept].tolist() == sorted(labels[kept].tolist())
    ranked = sorted(kept.tolist(), key=lambda i: (LABELS[i], i))
    assert kept.tolist() == ranked


def test_the_two_readings_differ_at_the_end_of_the_list() -> None:
    """Prefix: the last worker keeps its pure class whatever X < 1. Uniform: it gets a share of all classes."""
    labels = np.repeat(np.arange(4), 100)
    pure = Sorted(shuffled=0.5).blocks(view(labels.tolist()), 4, 0)
    assert classes(pure[3], labels) == {3: 100}
    mixed = Sorted(shuffled=0.5, reading="uniform").blocks(view(labels.tolist()), 4, 0)
    # Half of the examples are spread at random: about 12.5 of each class go to each worker.
    assert set(classes(mixed[3], labels)) == {0, 1, 2, 3}
    assert 50 <= classes(mixed[3], labels)[3] <= 80


def test_shards_by_hand() -> None:
    """Twelve sorted examples, three workers with two shards of two each."""
    labels = np.repeat(np.arange(6), 2)
    blocks = Shards(per_worker=2).blocks(view(labels.tolist()), 3, 0)
    assert [len(b) for b in blocks] == [4, 4, 4]
    for block in blocks:
        assert set(classes(block, labels).values()) == {2}, "a shard is not split"
        assert len(classes(block, labels)) == 2


def test_shards_limit_the_classes_of_a_worker() -> None:
    """k shards touch at most k classes where a shard lies within one, and 2 k where shards straddle."""
    labels = np.repeat(np.arange(10), 60)
    for per_worker in (1, 2, 3):
        blocks = Shards(per_worker=per_worker).blocks(view(labels.tolist()), 20 // per_worker, 1)
        assert max(len(classes(b, labels)) for b in blocks) <= 2 * per_worker
        assert max(map(len, blocks)) - min(map(len, blocks)) <= per_worker


def skew(alpha: float) -> float:
    """Mean total variation between a worker's classes and those of all."""
    labels = np.repeat(np.arange(5), 200)
    distances = []
    for seed in range(5):
        for block in Dirichlet(alpha=alpha).blocks(view(labels.tolist()), 8, seed):
            share = np.bincount(labels[block], minlength=5) / len(block)
            distances.append(0.5 * np.abs(share - 0.2).sum())
    return float(np.mean(distances))


def test_dirichlet_is_more_skewed_the_smaller_alpha_is() -> None:
    skews = [skew(alpha) for alpha in (0.01, 0.1, 1.0, 10.0, 1e4)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.6, "a class or two per worker"
    assert skews[-1] < 0.02, "nearly even"


def test_dirichlet_cuts_each_class_by_its_shares() -> None:
    """At a huge alpha all shares are 1 / workers: 200 of each class are 25 for each of 8 workers."""
    labels = np.repeat(np.arange(5), 200)
    for block in Dirichlet(alpha=1e9).blocks(view(labels.tolist()), 8, 0):
        assert all(abs(n - 25) <= 1 for n in classes(block, labels).values())


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_alpha_that_is_none(alpha: float) -> None:
    with pytest.raises(UserError, match="alpha"):
        Dirichlet(alpha=alpha)


@pytest.mark.parametrize("options", [{"shuffled": -0.1}, {"shuffled": 1.1}, {"reading": "suffix"}])
def test_sorted_refuses_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        Sorted(**options)


# -- from a file --------------------------------------------------------------------------------------------------
def test_a_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    blocks = Dirichlet(alpha=0.3).blocks(view(LABELS), 3, 0)
    write_blocks(path, blocks, speeds=[1, 2, 3], method={"name": "dirichlet"})
    read = FromFile(str(path)).blocks(DatasetView(10), 3, 99)
    assert [b.tolist() for b in read] == [b.tolist() for b in blocks]
    assert json.loads(path.read_text())["speeds"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"blocks": [[0, 1, 2], [3]]}', "has 2 blocks for 3 workers: run with --workers 2"),
        ('{"blocks": [[0, 1], [2], [4]]}', r"holds 4 indices \(4 different\) and the data has 4 examples"),
        ('{"blocks": [[0, 1], [2], [2]]}', r"holds 4 indices \(3 different\)"),
        ('{"blocks": [[0], [1], [2]]}', r"holds 3 indices"),
        ('{"blocks": [[0, 1, 4], [2], [3]]}', r"holds 5 indices"),
        ('{"blocks": [[0, 1], [-1], [3]]}', "made for other data"),
        ('{"blocks": [[0.5, 1], [2], [3]]}', "is not a partition file.*whole numbers"),
        ('{"blocks": [[[0, 1]], [2], [3]]}', "is not a partition file"),
        ('{"blocks": [["a"], [2], [3]]}', "is not a partition file"),
        ('{"blocks": [[100000000000000000000000], [2], [3]]}', "is not a partition file"),
        ('{"blocks": 3}', "is not a partition file"),
        ('{"parts": []}', "is not a partition file.*blocks"),
        ("[1, 2]", "is not a partition file"),
        ('{"blocks": [[0, 1', "is not a partition file"),
        ("", "is not a partition file"),
    ],
)
def test_a_file_that_does_not_fit(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        FromFile(str(path)).blocks(DatasetView(4), 3, 0)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.json does not exist"):
        FromFile(str(tmp_path / "none.json")).blocks(DatasetView(4), 2, 0)
    with pytest.raises(DataError, match="is not a partition file"):
        FromFile(str(tmp_path)).blocks(DatasetView(4), 2, 0)
    with pytest.raises(DataError, match="pass --partition.path FILE"):
        FromFile().blocks(DatasetView(4), 2, 0)


# -- what a partition sees ----------------------------------------------------------------------------------------
def test_labels_are_found_where_the_data_has_them() -> None:
    x = torch.zeros(3, 2)
    assert Source((x, torch.tensor([2, 0, 1]))).view().labels.tolist() == [2, 0, 1]
    assert Source((x, torch.zeros(3))).view().labels is None
    assert Source((x, torch.zeros(3, 4, dtype=torch.int64))).view().labels is None
    assert Source((x, torch.tensor([2, 0, 1]))).view().examples == 3
