"""Every method has an entry or is declared common knowledge; runs cite what they used and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.config.citations import FOLKLORE, METHODS, cite_all, entries, keys_of, ours
from equipoise.config.registry import entries as registered
from equipoise.core.errors import UserError

ROOT = Path(__file__).parents[2]
NEEDED = {"article": "journal", "inproceedings": "booktitle", "misc": "note", "techreport": "institution"}


@pytest.mark.parametrize("entry", registered(), ids=lambda e: f"{e.axis}-{e.name}")
def test_every_method_is_cited_or_declared_common_knowledge(entry: object) -> None:
    name = f"{entry.axis}.{entry.name}"  # type: ignore[attr-defined]
    assert (name in METHODS) != (name in FOLKLORE)
    assert set(METHODS.get(name, [])) <= set(entries())


def test_nothing_is_left_over() -> None:
    known = {f"{e.axis}.{e.name}" for e in registered()}
    assert set(METHODS) | FOLKLORE <= known
    options = {"order.sign": "walk", "optimizer": "adam", "schedule": "cosine", "scaling": "linear", "sam": 0.1}
    others = {"order.sign": "halving", "optimizer": "adamw", "scaling": "adascale", "sync": "diloco", "sync.delay": 2}
    used = {key for keys in METHODS.values() for key in keys} | set(keys_of(options)) | set(keys_of(others))
    assert used == set(entries())


@pytest.mark.parametrize("key", entries())
def test_entries_are_whole(key: str) -> None:
    text = entries()[key]
    match = re.match(r"@(\w+)\{(\w+),\n", text)
    assert match is not None
    fields = dict(re.findall(r"^  (\w+)\s*= \{(.*)\},?$", text, re.M))
    assert {"author", "title", "year", NEEDED[match[1]]} <= set(fields)
    assert text.count("{") == text.count("}")
    family = re.sub(r"\W", "", fields["author"].split(",")[0].replace("H{o}", "o")).lower()
    assert key.startswith(family), "the key begins with the first author's name"
    assert fields["year"] in key
    assert all("," in name or name.startswith("{") for name in fields["author"].split(" and "))


def test_a_method_names_its_authors_in_its_docstring() -> None:
    """The first author in citations.bib stands in the reference of the docstring."""
    from equipoise.config.registry import get

    for name, keys in METHODS.items():
        axis, method = name.split(".")
        words = (get(axis, method).__doc__ or "").split("Reference:")
        if axis in ("data", "model") or len(words) < 2 or name == "partition.submodular":
            continue
        author = re.search(r"author\s*= \{(.*?),", entries()[keys[0]])
        assert author is not None
        plain = author[1].replace(r"{\H{o}}", "o")
        assert plain in words[1], f"{name}: {plain}"


def run(folder: Path, **choices: object) -> eq.Run:
    x = torch.randn(64, 4)
    return eq.train(nn.Linear(4, 1), nn.MSELoss(), (x, x[:, :1]), workers=4, steps=2, out=folder, **choices)  # type: ignore[arg-type]


def test_a_run_cites_what_it_used(tmp_path: Path) -> None:
    done = run(tmp_path / "a", sync=eq.sync.DPSGD(topology=eq.topology.OnePeer()))
    text = eq.cite(done)
    assert text.startswith("@software{equipoise,")
    assert re.findall(r"@\w+\{(\w+),", text) == ["equipoise", "ying2021exponential", "lian2017can"]
    run(tmp_path / "b", order=eq.order.CDGraB(), batch=eq.batch.NormTest(start=4, most=8))
    both = cite_all([tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    keys = re.findall(r"@\w+\{(\w+),", both)
    assert len(keys) == len(set(keys)) == 7
    assert {"cooper2023coordinating", "lu2022grab", "lau2024communication", "byrd2012sample"} <= set(keys)


def test_what_cannot_be_cited_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        eq.cite(tmp_path)
    x = torch.randn(8, 2)
    with pytest.raises(UserError, match="out="):
        eq.cite(eq.train(nn.Linear(2, 1), nn.MSELoss(), (x, x[:, :1]), steps=1))


def test_the_same_as_citation_cff() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    for value in re.findall(r'^(?:  - )?(?:title|version|name): "?([^"\n]+)', text, re.M):
        assert value.strip() in ours().replace("{", "").replace("}", "")
