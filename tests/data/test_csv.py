import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.core import memory
from equipoise.core.errors import DataError, UserError
from equipoise.data import CSV

TABLE = "age,city,size,kind\n" + "".join(f"{20 + i},town{i},{0.5 * i},{'ab'[i % 2]}\n" for i in range(10))


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def test_columns_are_scaled_by_the_training_part_and_classes_are_sorted(tmp_path: Path) -> None:
    loaded = CSV(path=write(tmp_path / "t.csv", TABLE), target="kind", drop=("city",)).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("classify", 2, (2,))
    assert (loaded.notes["columns"], loaded.notes["classes"]) == (["age", "size"], ["a", "b"])
    assert (len(loaded.train), len(loaded.test)) == (8, 2)
    assert sorted(loaded.test.y.tolist()) == [0, 1], "a fifth of every class"
    x = loaded.train.x.double()
    torch.testing.assert_close(x.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    # Back in the units of the file every row is there once, with its own class.
    rows = torch.cat([loaded.train.x, loaded.test.x]).double() * torch.tensor(loaded.notes["std"], dtype=torch.float64)
    ages = (rows + torch.tensor(loaded.notes["mean"], dtype=torch.float64))[:, 0].round().int().tolist()
    assert sorted(ages) == list(range(20, 30))
    assert [age % 2 for age in ages] == [*loaded.train.y.tolist(), *loaded.test.y.tolist()]


def test_numbers_are_regressed_on_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", TABLE)
    loaded = CSV(path=path, target="size", columns=("age",), standardise=False).load()
    assert (loaded.task, loaded.outputs, loaded.shape) == ("regress", 1, (1,))
    assert loaded.train.y.shape == (8, 1)
    torch.testing.assert_close(loaded.train.y, 0.5 * (loaded.train.x - 20))
    whole = CSV(path=path, target="age", columns=("size",), task="regress").load()
    assert whole.task == "regress"


def test_a_test_file_quotes_and_other_delimiters(tmp_path: Path) -> None:
    train = write(tmp_path / "a", '"x";"the ""y"""\r\n1;no\r\n\r\n3;yes\r\n5;yes\r\n')
    test = tmp_path / "b.gz"
    test.write_bytes(gzip.compress(b'\xef\xbb\xbfx;"the ""y"""\n3;no'.replace(b"3;no", b"3;no\n1;yes")))
    loaded = CSV(path=train, test_path=str(test), target='the "y"', delimiter="semicolon", limit=2).load()
    assert loaded.train.y.tolist() == [0, 1]
    assert loaded.test.y.tolist() == [0, 1]
    expected = torch.tensor([[0.0], [-2.0]]) / np.sqrt(8 / 3)
    torch.testing.assert_close(loaded.test.x, expected.float(), msg="scaled by all training rows: mean 3, variance 8/3")


def test_the_seed_alone_decides_the_split_and_a_constant_column_becomes_zeros(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "x,one,y\n" + "".join(f"{i},7,{i % 3}\n" for i in range(60)))
    first, again, other = (CSV(path=path, target="y", seed=seed).load() for seed in (0, 0, 1))
    assert first.test.x.equal(again.test.x)
    assert not first.test.x.equal(other.test.x)
    assert (first.train.x[:, 1] == 0).all()
    assert first.test.y.bincount().tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no column 'y' for --data.target"),
        ("x,z\n1,2\n", "no column 'y' for --data.target: known: x, z"),
        ("x;y\n1;2\n", "no column 'y' .*--data.delimiter semicolon"),
        ("1,2\n3,4\n", "the first line holds numbers"),
        ("x,y,x\n1,2,3\n", "two columns are named 'x'"),
        ("y\n1\n2\n", "no column is left"),
        ("x,y\n1,2\n", "1 rows below the header"),
        ("x,y\n1,a\n2\n", "line 3 has 1 columns, the header 2"),
        ("x,y\n1,a\n2,b,3\n", "line 3 has 3 columns"),
        ("x,y\n1,a\nPort Said,b\n", "line 3, column 'x': 'Port Said' is no number: fix it, or .*--data.drop"),
        ("x,y\n1,a\n ,b\n", "line 3, column 'x': it is empty"),
        ("x,y\n1,a\nnan,b\n", "line 3, column 'x': 'nan' is no number"),
        ("x,y\n1,a\n1e999,b\n", "line 3, column 'x': '1e999' is no number"),
        ("x,y\n1,a\n2,\n3,a\n", "line 3 has no target"),
        ("x,y\n1,a\n2,a\n", "every row has the target 'a'"),
        ("x,y\n1,10\n2,20\n3,30\n4,41\n", "4 different targets in 4 rows are no classes: .*regress"),
        ('x,y\n1,"a\n2,b\n', "line 3: unexpected end of data: fix the quotes"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=f"bad.csv: {match}") as caught:
        CSV(path=write(tmp_path / "bad.csv", text), target="y").load()
    assert "\n" not in str(caught.value)


def test_a_test_file_that_does_not_belong_to_it(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "x,y\n1,a\n2,b\n3,b\n")
    for text, match in (("y,z\na,1\nb,2\n", "its columns are not those"), ("x,y\n1,a\n2,c\n", "line 3 has target 'c'")):
        with pytest.raises(DataError, match=match):
            CSV(path=path, target="y", test_path=write(tmp_path / "other", text)).load()


def test_bad_options_and_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.csv", TABLE)
    with pytest.raises(DataError, match=r"^csv needs .*--data\.path"):
        CSV().load()
    with pytest.raises(DataError, match=r"pass the column to predict as --data.target: one of age, city, size, kind"):
        CSV(path=path).load()
    with pytest.raises(DataError, match="no column 'sizes' for --data.drop: did you mean 'size'?"):
        CSV(path=path, target="kind", drop=("sizes",)).load()
    with pytest.raises(DataError, match="column 'the target': 'a' is no number: .*--data.task classify"):
        CSV(path=path, target="kind", task="regress", drop=("city",)).load()
    with pytest.raises(UserError, match="cannot be one of the inputs"):
        CSV(path=path, target="kind", columns=("kind",))
    monkeypatch.setattr(memory, "memory", lambda: 200.0)
    with pytest.raises(UserError, match=r"t.csv would take .* GB of memory"):
        CSV(path=path, target="kind").load()
