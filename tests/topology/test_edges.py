from __future__ import annotations

import pickle

import numpy as np
import pytest

from equipoise.core.errors import UserError
from equipoise.topology import Edges, Ring

SQUARE = [(0, 1), (1, 2), (2, 3), (3, 0)]


def test_metropolis_weights_unless_given():
    assert Edges(links=SQUARE).on(4).fingerprint() == Ring().on(4).fingerprint()
    lollipop = Edges(links=[*SQUARE, (3, 4)]).on(5).matrix()
    assert lollipop[3, 4] == lollipop[4, 3] == pytest.approx(1 / 4)
    assert lollipop[0, 1] == pytest.approx(1 / 3)
    weighted = Edges(links=[(0, 1, 0.25), (1, 2, 0.5)]).on(3)
    np.testing.assert_allclose(weighted.matrix(), [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]])
    weighted.validate()


def test_a_file_a_list_and_strings_give_the_same_graph(tmp_path):
    file = tmp_path / "graph.txt"
    file.write_text("# a square\n0 1\n1\t2\n\n2 3  # and back\n3 0\n")
    prints = {
        Edges(path=str(file)).on(4).fingerprint(),
        Edges(links=SQUARE).on(4).fingerprint(),
        Edges(links=["0-1", "1-2", "2-3", "3-0"]).on(4).fingerprint(),
        Edges(links=["0 1", "1 2", "2 3", "3 0"]).on(4).fingerprint(),
    }
    assert len(prints) == 1
    weighted = Edges(links=["0-1-2.5e-1", "1-2-0.5"]).on(3)
    assert weighted.fingerprint() == Edges(links=[[0, 1, 0.25], [1, 2, 0.5]]).on(3).fingerprint()


def test_a_changed_file_changes_nothing_that_is_built(tmp_path):
    file = tmp_path / "graph.txt"
    file.write_text("0 1\n1 2\n2 0\n")
    for directed in (False, True):
        file.write_text("0 1\n1 2\n2 0\n")
        before = Edges(path=str(file), directed=directed)
        first = before.on(3).targets(0, 0), before.on(3).rate()
        file.write_text("1 0\n0 2\n2 1\n1 2\n" if directed else "0 1\n1 2\n")
        assert (before.on(3).targets(0, 0), before.on(3).rate()) == first
        assert pickle.loads(pickle.dumps(before)).on(3).targets(0, 0) == first[0]
        after = Edges(path=str(file), directed=directed).on(3)
        assert (after.targets(0, 0), after.fingerprint()) != (first[0], before.on(3).fingerprint())


def test_a_directed_worker_splits_its_model():
    bound = Edges(links=[(0, 1), (1, 2), (2, 0), (0, 2)], directed=True).on(3)
    assert bound.targets(0, 0) == [(1, 1 / 3), (2, 1 / 3)]
    weights = bound.matrix()
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    assert weights[2, 0] == pytest.approx(1 / 3)
    assert weights[0, 2] == pytest.approx(1 / 2)
    bound.validate(push_sum=True)
    with pytest.raises(UserError, match=r"moves the mean.*sgp"):
        bound.validate()
    assert bound.rounds_to_contract() is None
    assert bound.diameter() == 2


def test_directed_and_balanced_is_fine_for_all():
    bound = Edges(links=[(0, 1, 0.3), (1, 2, 0.3), (2, 0, 0.3)], directed=True).on(3)
    bound.validate()
    assert not bound.symmetric
    assert bound.rounds_to_contract() > 1


@pytest.mark.parametrize(
    ("links", "workers", "words"),
    [
        ([(0, 1), (2, 3)], 4, "workers 0 1 and workers 2 3 have no path between them: add a link, such as 0 2"),
        ([(0, 1)], 3, "have no path"),
        ([(0, 1), (1, 4)], 4, "names worker 4 but there are 4.*--workers 5"),
        ([(0, 1), (1, 0)], 2, "is listed twice"),
        ([(0, 0)], 2, "two different workers"),
        ([(-1, 0)], 2, "two different workers, numbered from 0"),
        ([(0, 1, 0.5), (1, 2)], 3, "1 of 2 links have a weight"),
        ([(0, 1, 0.7), (1, 2, 0.7)], 3, "worker 1 sum to 1.4"),
        ([(0, 1, -0.2)], 2, "above 0"),
        ([(0, 1, float("nan"))], 2, "above 0"),
        ([(0, 1, 2, 3)], 3, "two worker numbers"),
        ([(0, 0.5)], 3, "two worker numbers"),
        (["0"], 3, "two worker numbers"),
        ([7], 3, "two worker numbers"),
        ([], 3, "--topology.path"),
    ],
)
def test_nonsense_is_refused_with_the_fix(links, workers, words):
    with pytest.raises(UserError, match=words):
        Edges(links=links).on(workers)


def test_files_that_cannot_be_used(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n")
    bad = tmp_path / "bad.txt"
    bad.write_text("0 1\none two\n")
    for path, words in ((empty, "has no links"), (bad, "bad.txt line 2: takes two"), (tmp_path / "no", "not exist")):
        with pytest.raises(UserError, match=words):
            Edges(path=str(path))
    with pytest.raises(UserError, match="not both"):
        Edges(path=str(bad), links=SQUARE)


@pytest.mark.parametrize(("links", "words"), [([(0, 1), (0, 2)], "hears from"), ([(1, 0), (2, 0)], "reaches")])
def test_graphs_that_are_not_strongly_connected_are_refused(links, words):
    with pytest.raises(UserError, match=f"not strongly connected, worker 0 never {words} workers 1 2"):
        Edges(links=links, directed=True).on(3)
