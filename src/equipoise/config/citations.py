"""BibTeX for what a run used: the papers of its methods, and Equipoise itself.

`citations.bib` beside this file holds the entries; the tables here say which choice stands on which of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError

if TYPE_CHECKING:
    from ..loop.train import Run

_METHODS = """
partition.sorted         lu2021optimal
partition.shards         mcmahan2017communication
partition.dirichlet      hsu2019measuring
partition.submodular     he2023rcdsgd
order.flip-flop          rajput2022permutation
order.paired-reversal    nguyen2026learning
order.herding            lu2022general
order.grab               lu2022grab
order.pair-balance       cooper2023coordinating lu2022grab
order.cd-grab            cooper2023coordinating lu2022grab
order.id-grab            cooper2023coordinating lu2022grab
batch.schedule           smith2018dont
batch.norm-test          lau2024communication byrd2012sample
batch.inner-product      bollapragada2018adaptive
batch.augmented          bollapragada2018adaptive
batch.noise-scale        mccandlish2018empirical
batch.cabs               balles2017coupling
batch.proportional       he2023rcdsgd
period.post-local        lin2020dont
period.qsr               gu2024quadratic
period.growing           spiridonoff2021communication
period.total-steps       teng2019leader dimlioglu2024grawa
topology.exponential     ying2021exponential
topology.one-peer        ying2021exponential
topology.base-k          takezawa2023beyond
topology.matching        boyd2006randomized
topology.random          erdos1959random
sync.periodic-average    stich2019local
sync.slowmo              wang2020slowmo
sync.diloco              douillard2023diloco
sync.d-psgd              lian2017can
sync.d2                  tang2018d2
sync.dsgt                zhang2019decentralized
sync.detag               lu2021optimal lu2023decentralized liu2011accelerated
sync.defacto             lu2021optimal
sync.mg-dsgd             yuan2022revisiting
sync.sgp                 assran2019stochastic
sync.qg-dsgdm            lin2021quasi
sync.dsgdm-n             lin2021quasi
sync.k-gt                liu2024decentralized
sync.edm                 hu2025bias
sync.relay               vogels2021relaysum
sync.matcha              wang2019matcha
sync.ad-psgd             lian2018asynchronous
sync.easgd               zhang2015deep
sync.eamsgd              zhang2015deep
sync.lsgd                teng2019leader
sync.mgrawa              dimlioglu2024grawa
sync.lgrawa              dimlioglu2024grawa
data.digits              alpaydin1998cascading
data.fashion-mnist       xiao2017fashion
data.cifar10             krizhevsky2009learning
model.lenet              lecun1998gradient
model.vgg                simonyan2015very
model.resnet             he2016deep
model.lstm               hochreiter1997long
model.transformer        vaswani2017attention
"""
# Common knowledge, or only a name for what the user brings along: nobody to cite.
_FOLKLORE = """
partition.iid partition.contiguous partition.stratified partition.from-file
order.sequential order.reshuffle order.shuffle-once
batch.fixed period.every
topology.complete topology.ring topology.path topology.star topology.torus topology.hypercube topology.edges
sync.none sync.all-reduce
data.text data.tsv data.synthetic model.logistic model.mlp
"""
# Options and settings with a paper of their own: (key of the flat recipe, value or None for any) -> keys.
_OPTIONS = {
    ("order.sign", "halving"): "carrell2025lowrank",
    ("order.sign", "walk"): "alweiss2021discrepancy",
    ("optimizer", "adam"): "kingma2015adam",
    ("optimizer", "adamw"): "loshchilov2019decoupled",
    ("schedule", "cosine"): "loshchilov2017sgdr",
    ("scaling", "linear"): "goyal2017accurate",
    ("scaling", "adascale"): "johnson2020adascale",
    ("sam", None): "foret2021sharpness",
}
FOLKLORE = frozenset(_FOLKLORE.split())
METHODS = {line.split()[0]: line.split()[1:] for line in _METHODS.strip().splitlines()}


def cite(run: Run | Path | str) -> str:
    """BibTeX entries for what a run used, a blank line between them; Equipoise comes first.

    run: what `eq.train` gave, if it wrote a folder, or the folder of a run. Choices that are common knowledge have no
        entry.
    """
    folder = getattr(run, "folder", run)
    if folder is None:
        raise UserError("this run has no folder, so its choices are not known: pass out=... to eq.train")
    return cite_all([folder])


def cite_all(folders: list[Any]) -> str:
    """The same for several runs, every entry once."""
    keys = dict.fromkeys(key for folder in folders for key in keys_of(choices_of(Path(folder))))
    known = entries()
    return "\n\n".join([ours(), *(known[key] for key in keys)]) + "\n"


def choices_of(folder: Path) -> dict[str, Any]:
    """The choices of a run in one level, such as "sync": "detag", "order.sign": "walk"."""
    from ..core.toml import read_toml

    path = folder / "recipe.toml"
    if path.is_file():
        table = read_toml(path)
    elif (folder / "checkpoints").is_dir():
        return classes_of(folder)
    else:
        raise UserError(f"{folder} is not the folder of a run: it has no recipe.toml")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and "name" in value:
            found |= {f"{key}.{option}": v for option, v in value.items()} | {key: value["name"]}
        elif not isinstance(value, dict):
            found[key] = value
    return found


def classes_of(folder: Path) -> dict[str, Any]:
    """The choices of a run of `eq.train`, which writes no recipe: from its checkpoint, by the names of classes."""
    from ..checkpoint.store import available, read_manifest
    from .registry import entries as registered

    steps = available(folder)
    if not steps:
        raise UserError(f"{folder} has neither a recipe nor a checkpoint: its choices are not known")
    names = {(entry.axis, entry.target.split(":")[1]): entry.name for entry in registered()}
    found: dict[str, Any] = {}
    for axis, text in read_manifest(steps[-1])["fingerprint"].items():
        if isinstance(text, str) and (match := re.match(r"(\w+)\(", text)):
            found[axis] = names.get((axis, match[1]), match[1])
            inner = re.search(r"topology=(\w+)\(", text)
            if inner is not None:
                found["topology"] = names.get(("topology", inner[1]), inner[1])
    return found


def keys_of(choices: dict[str, Any]) -> list[str]:
    """The entries behind choices; a method of the user's own has none."""
    from .registry import AXES

    found = [key for axis in AXES for key in METHODS.get(f"{axis}.{choices.get(axis)}", [])]
    for (name, value), key in _OPTIONS.items():
        if choices.get(name) is not None and value in (None, choices[name]):
            found.append(key)
    if choices.get("sync") == "diloco" and (choices.get("sync.fragments", 1) != 1 or choices.get("sync.delay", 0)):
        found.append("douillard2025streaming")
    return found


def entries() -> dict[str, str]:
    """Every entry of citations.bib by its key."""
    text = Path(__file__).with_name("citations.bib").read_text(encoding="utf-8")
    parts = [part.strip() for part in re.split(r"\n\s*\n(?=@)", text)]
    return {part.split("{", 1)[1].split(",", 1)[0]: part for part in parts}


def ours() -> str:
    """Equipoise, as CITATION.cff says it."""
    from .. import __version__

    return (
        "@software{equipoise,\n"
        "  author  = {{The Equipoise developers}},\n"
        "  title   = {{Equipoise}: training one model on unequal workers},\n"
        f"  version = {{{__version__}}}\n"
        "}"
    )
