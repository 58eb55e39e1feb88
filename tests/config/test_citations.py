"""Methods name what they stand on in their metadata; runs cite what they used and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.config.citations import cite_all, entries, keys_of, ours
from equipoise.config.registry import Entry, get
from equipoise.config.registry import entries as registered
from equipoise.core.errors import CheckpointError, UserError

ROOT = Path(__file__).parents[2]
NEEDED = {"article": "journal", "inproceedings": "booktitle", "misc": "note", "techreport": "institution"}


def test_every_entry_is_cited_by_a_method_or_an_option() -> None:
    methods = {key for entry in registered() for key in entry.cites}
    assert methods <= set(entries())
    options = {"order.sign": "walk", "optimizer": "adam", "schedule": "cosine", "scaling": "linear", "sam": 0.1}
    others = {"order.sign": "halving", "optimizer": "adamw", "scaling": "adascale"}
    streaming = {"sync.name": "diloco", "sync.delay": 2}
    used = methods.union(*map(keys_of, (options, others, streaming)))
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


@pytest.mark.parametrize(
    "entry", [e for e in registered() if e.axis not in ("data", "model")], ids=lambda e: f"{e.axis}-{e.name}"
)
def test_a_method_names_its_authors_in_its_docstring(entry: Entry) -> None:
    """The first author of what it cites stands in the reference of its docstring, and every reference is cited."""
    _, _, reference = (get(entry.axis, entry.name).__doc__ or "").partition("Reference:")
    assert bool(entry.cites) >= bool(reference), "add the key of the reference to the metadata"
    if reference and entry.name != "submodular":  # its reference is cited by the titles
        author = re.search(r"author\s*= \{(.*?),", entries()[entry.cites[0]])
        assert author is not None
        assert author[1].replace(r"{\H{o}}", "o") in reference


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


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(tmp_path / "a", sync=eq.sync.DPSGD())
    for manifest in (tmp_path / "a").glob("checkpoints/*/manifest.json"):
        manifest.write_text("{")
    with pytest.raises(CheckpointError, match="manifest.json is damaged"):
        eq.cite(tmp_path / "a")


def test_a_recipe_and_its_options_are_cited(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('optimizer = "adam"\n[order]\nname = "grab"\nsign = "walk"\n')
    keys = re.findall(r"@\w+\{(\w+),", eq.cite(tmp_path))
    assert keys == ["equipoise", "lu2022grab", "alweiss2021discrepancy", "kingma2015adam"]


def test_the_same_as_citation_cff() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    for value in re.findall(r'^(?:  - )?(?:title|version|name): "?([^"\n]+)', text, re.M):
        assert value.strip() in ours().replace("{", "").replace("}", "")
