from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.core.errors import DataError, UserError
from equipoise.data import TSV

TRAIN = "sentence\tlabel\ngood film \t1\nbad bad film\t0\n\t1\na film <pad> of <unk> words\t0\n"
TEST = "label\textra\tsentence\r\n1\tx\tgood words zebra\r\n0\ty\tbad"


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    return {"path": write(tmp_path / "train", TRAIN), "test_path": write(tmp_path / "test", TEST)}


def test_tokens(paths: dict[str, str]) -> None:
    loaded = TSV(**paths, length=4).load()
    assert loaded.notes["vocabulary"] == ["<pad>", "<unk>", "film", "bad", "a", "good", "of", "words"]
    assert (loaded.task, loaded.outputs, loaded.shape, loaded.tokens) == ("classify", 2, (4,), 8)
    # A word of the text that looks like padding is an unknown word, not padding.
    assert loaded.train.x.tolist() == [[5, 2, 0, 0], [3, 3, 2, 0], [0, 0, 0, 0], [4, 2, 1, 6]]
    assert loaded.train.y.tolist() == [1, 0, 1, 0]
    assert loaded.test.x.tolist() == [[5, 7, 1, 0], [3, 0, 0, 0]]
    assert loaded.train.x.dtype == torch.int64


def test_bag(paths: dict[str, str]) -> None:
    loaded = TSV(**paths, features="bag").load()
    assert (loaded.task, loaded.outputs, loaded.shape, loaded.tokens) == ("classify", 2, (8,), None)
    x, y = loaded.train.batch(np.array([1, 2, 0]))
    assert x.dtype == torch.float32
    expected = torch.zeros(3, 8)
    expected[0, 3], expected[0, 2] = 2 / 5**0.5, 1 / 5**0.5
    expected[2, 5] = expected[2, 2] = 0.5**0.5
    torch.testing.assert_close(x, expected)
    assert y.tolist() == [0, 1, 1]


def test_bag_by_index_is_as_by_batch(paths: dict[str, str]) -> None:
    train = TSV(**paths, features="bag").load().train
    x, y = train.batch(np.arange(4))
    assert len(train) == 4
    assert train[-1][0].equal(x[3])
    assert [int(label) for _, label in train] == y.tolist() == train.targets.tolist()
    for i, (xi, yi) in enumerate(train.__getitems__([3, 1])):
        assert xi.equal(x[[3, 1][i]])
        assert yi == y[[3, 1][i]]
    with pytest.raises(IndexError):
        train[4]


def test_vocabulary_is_bounded(paths: dict[str, str]) -> None:
    loaded = TSV(**paths, vocabulary=4).load()
    assert loaded.notes["vocabulary"] == ["<pad>", "<unk>", "film", "bad"]
    assert loaded.tokens == 4


@pytest.mark.parametrize(
    ("labels", "order"),
    [(["10", "9", "-1"], ["-1", "9", "10"]), (["pos", "neg", "10"], ["10", "neg", "pos"])],
)
def test_labels_are_sorted_as_numbers_or_as_words(tmp_path: Path, labels: list[str], order: list[str]) -> None:
    path = write(tmp_path / "t", "sentence\tlabel\n" + "".join(f"x\t{label}\n" for label in labels))
    loaded = TSV(path=path, test_path=path).load()
    assert loaded.notes["classes"] == order
    assert loaded.train.y.tolist() == [order.index(label) for label in labels]


def test_without_a_test_file_the_last_tenth_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "sentence\tlabel\n" + "".join(f"word{i}\t{i % 2}\n" for i in range(30)))
    loaded = TSV(path=path, limit=5).load()
    assert (len(loaded.train), len(loaded.test)) == (5, 3)
    assert loaded.tokens == 2 + 27
    assert (loaded.test.x[:, 0] == 1).all()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no column 'sentence' for --data.text_column"),
        ("sentences\tlabel\na\t1\n", "no column 'sentence' .*did you mean 'sentences'"),
        ("sentence\tclass\na\t1\n", "no column 'label' for --data.label_column.*sentence, class"),
        ("sentence\tlabel\n", "0 rows"),
        ("sentence\tlabel\na\t1\nb\n", "line 3 has 1 columns, the header 2"),
        ("sentence\tlabel\na\t1\n\nb\t0\n", "line 3 has 1 columns"),
        ("sentence\tlabel\na\t1\nb\tc\t0\n", "line 3 has 3 columns"),
        ("sentence\tlabel\na\t1\nb\t \n", "line 3 has no label"),
        ("sentence\tlabel\na\t1\nb\t1\nc\t1\n", "every training row has the label '1'"),
        ("sentence\tlabel\na\t1\nb\t2\nc\t3\n", "line 4 has label '3', which no training row has"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=f"bad.tsv: {match}") as caught:
        TSV(path=write(tmp_path / "bad.tsv", text)).load()
    assert "\n" not in str(caught.value)


def test_bad_options() -> None:
    with pytest.raises(DataError, match=r"^tsv needs .*--data\.path"):
        TSV().load()
    with pytest.raises(UserError, match="name two columns"):
        TSV(label_column="sentence")
    with pytest.raises(UserError, match="tokens, bag"):
        TSV(features="bags")
