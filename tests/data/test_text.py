import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.core.errors import DataError
from equipoise.data import Text


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def test_vocabulary_and_windows(tmp_path: Path) -> None:
    train = write(tmp_path / "train", "b a b\n\nc <unk> a b\n")
    test = write(tmp_path / "test", "a zebra b\nc")
    loaded = Text(path=train, test_path=test, length=2).load()
    vocabulary = ["<unk>", "<eos>", "b", "a", "c"]
    assert loaded.notes["vocabulary"] == vocabulary
    assert (loaded.task, loaded.outputs, loaded.tokens, loaded.shape) == ("language", 5, 5, (2,))
    words = ["b", "a", "b", "<eos>", "<eos>", "c", "<unk>", "a", "b", "<eos>"]
    ids = [vocabulary.index(word) for word in words]
    assert loaded.train.x.tolist() == [ids[0:2], ids[2:4], ids[4:6], ids[6:8]]
    assert loaded.train.y.tolist() == [ids[1:3], ids[3:5], ids[5:7], ids[7:9]]
    # The last line counts as one, although no newline ends it.
    assert loaded.test.x.tolist() == [[3, 0], [2, 1]]
    assert loaded.test.y.tolist() == [[0, 2], [1, 4]]
    assert loaded.train.x.dtype == loaded.train.y.dtype == torch.int64


def test_rare_words_and_a_full_vocabulary_become_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "a a a b b c\n" * 4 + "d\n")
    rare = Text(path=path, test_path=path, length=3, least_count=2).load()
    assert rare.notes["vocabulary"] == ["<unk>", "a", "b", "<eos>", "c"]
    small = Text(path=path, test_path=path, length=3, vocabulary=3).load()
    assert small.notes["vocabulary"] == ["<unk>", "a", "b"]
    assert small.outputs == small.tokens == 3
    assert small.train.x.max() == 2


def test_without_a_test_file_the_last_tenth_is_held_out(tmp_path: Path) -> None:
    words = [f"w{i:03}" for i in range(100)]
    path = write(tmp_path / "t", " ".join(words))
    loaded = Text(path=path, length=5).load()
    assert (len(loaded.train), len(loaded.test)) == (18, 2)
    # 18 windows and the last target are all that training sees, so 9 words and <eos> are unknown.
    assert loaded.tokens == 1 + 91
    assert loaded.train.y[-1, -1] == loaded.test.x[0, 0]
    assert loaded.test.x.flatten().tolist() == [91] + [0] * 9


def test_limit_leaves_vocabulary_and_test_part(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "one two three four five six seven\n" * 20)
    full, some = Text(path=path, length=4).load(), Text(path=path, length=4, limit=3).load()
    assert some.train.x.equal(full.train.x[:3])
    assert some.test.y.equal(full.test.y)
    assert some.tokens == full.tokens


def test_gzip_windows_newlines_and_byte_order_mark(tmp_path: Path) -> None:
    text = "a b c d\ne f\n" * 5
    plain = Text(path=write(tmp_path / "a", text), length=3).load()
    (tmp_path / "b").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()))
    packed = Text(path=str(tmp_path / "b"), length=3).load()
    assert packed.notes["vocabulary"] == plain.notes["vocabulary"]
    assert packed.train.x.equal(plain.train.x)


def test_errors(tmp_path: Path) -> None:
    short = write(tmp_path / "short", "a b c\n")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    cases = {
        r"^text needs .*--data\.path": Text(),
        "nowhere: no such file: check --data.path": Text(path=str(tmp_path / "nowhere")),
        "nowhere: no such file: check --data.test_path": Text(
            path=short, test_path=str(tmp_path / "nowhere"), length=1
        ),
        "cannot be read": Text(path=str(tmp_path)),
        "short: 4 words, but 71 are the least.*--data.length": Text(path=short),
        "latin: not UTF-8 text": Text(path=str(tmp_path / "latin")),
    }
    for match, data in cases.items():
        with pytest.raises(DataError, match=match) as caught:
            data.load()
        assert "\n" not in str(caught.value)


def test_the_shortest_text_that_will_do(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "a b c d")
    loaded = Text(path=path, length=2).load()
    assert (len(loaded.train), len(loaded.test)) == (1, 1)
    assert np.array_equal(loaded.train.x[0, 1:], loaded.train.y[0, :1])
