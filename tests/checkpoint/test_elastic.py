"""Resume on another number of workers: every remaining example of the epoch exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.checkpoint.reshard import mean
from equipoise.core.errors import CheckpointError

from ..comm.workers import both
from ..loop.problem import EXAMPLES, INPUTS, TARGETS, adam, momentum, plain, train, vector, with_norm

TEST = INPUTS[:4], TARGETS[:4]


class Watched(Dataset):
    """Writes down which examples were asked for, whatever process asks."""

    def __init__(self, log: Path):
        self.log = log

    def __len__(self) -> int:
        return EXAMPLES

    def __getitems__(self, indices: list[int]) -> list[Any]:
        with open(self.log, "a") as file:
            file.write(" ".join(map(str, indices)) + "\n")
        return [(INPUTS[i], TARGETS[i]) for i in indices]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def seen(self) -> list[int]:
        found = sorted(int(i) for i in self.log.read_text().split())
        self.log.write_text("")
        return found


@pytest.mark.parametrize(
    ("before", "after", "virtual"),
    [(4, 3, True), (2, 5, True), (3, 1, True), (1, 4, True), (4, 3, False), (2, 5, False)],
)
def test_each_example_of_the_epoch_once(before: int, after: int, virtual: bool, tmp_path: Path) -> None:
    data, run = Watched(tmp_path / "log"), tmp_path / "run"
    how = {"optimizer": momentum, "batch": 3, "test": TEST, "out": run, "virtual": virtual, "timeout": 30.0}
    eq.train(plain(), cross_entropy, data, workers=before, steps=3, **how)
    eq.train(plain(), cross_entropy, data, workers=after, epochs=1, resume=True, **how)
    assert data.seen() == list(range(EXAMPLES))
    last = eq.train(plain(), cross_entropy, data, workers=after, epochs=3, resume=True, **how)
    assert data.seen() == sorted([*range(EXAMPLES), *range(EXAMPLES)]), "later epochs are ordinary ones"
    assert last.result["samples"] == 3 * EXAMPLES
    assert last.result["epochs"] == 3.0


def test_stopped_in_a_redistributed_epoch_and_resumed_on_yet_another_number(tmp_path: Path) -> None:
    data, run = Watched(tmp_path / "log"), tmp_path / "run"
    how = {"batch": 2, "test": TEST, "out": run}
    for workers, steps in ((4, 2), (3, 4), (3, 5), (2, 7)):
        eq.train(plain(), cross_entropy, data, workers=workers, steps=steps, resume=steps > 2, **how)
    result = eq.train(plain(), cross_entropy, data, workers=5, epochs=1, resume=True, **how).result
    assert data.seen() == list(range(EXAMPLES))
    assert result["samples"] == EXAMPLES


def test_a_part_of_an_epoch_is_a_part_of_all_of_it(tmp_path: Path) -> None:
    """Stopped after 24 of 52 on other workers, 0.75 epochs are 39 examples in all, not 24 and 0.75 of the rest."""
    how = {"batch": 3, "out": tmp_path / "run"}
    assert train(workers=4, steps=2, **how).result["samples"] == 24
    assert train(workers=1, epochs=0.75, resume=True, **how).result["samples"] == 39


def test_at_the_end_of_an_epoch_the_next_one_begins(tmp_path: Path) -> None:
    data, run = Watched(tmp_path / "log"), tmp_path / "run"
    how = {"batch": 3, "test": TEST, "out": run}
    eq.train(plain(), cross_entropy, data, workers=4, epochs=1, **how)
    assert data.seen() == list(range(EXAMPLES))
    eq.train(plain(), cross_entropy, data, workers=2, epochs=2, resume=True, **how)
    assert data.seen() == list(range(EXAMPLES))


def test_counts_are_kept_in_total(tmp_path: Path) -> None:
    how = {"batch": 3, "out": tmp_path / "run"}
    first = train(workers=4, steps=3, **how).result
    second = train(workers=2, steps=3, resume=True, **how).result  # nothing left to do: what was read back
    for key in ("steps", "samples", "rounds", "messages", "bytes"):
        assert second[key] == first[key], key


@both
def test_all_reduce_goes_on_with_the_same_model(virtual: bool, tmp_path: Path) -> None:
    """All workers were equal, so their mean is each of them, to the bit; one more step is that of the union batch."""
    how = {"batch": 3, "out": tmp_path / "run", "virtual": virtual, "deterministic": True}
    first = train(plain(), adam, workers=4, steps=3, **how)
    again = train(plain(), adam, workers=3, steps=3, resume=True, **how)
    assert again.result["params_sha256"] == first.result["params_sha256"]


def test_models_momenta_and_buffers_become_means(tmp_path: Path) -> None:
    """Workers that trained apart: by hand from the files of the old ones."""
    how = {"batch": 6, "out": tmp_path / "run", "sync": eq.sync.NoSync()}
    train(with_norm(), momentum, workers=3, steps=2, **how)
    folder = tmp_path / "run" / "checkpoints" / "step-2"
    states = [torch.load(folder / f"worker-{r}.pt", weights_only=True) for r in range(3)]
    run = train(with_norm(), momentum, workers=2, steps=3, resume=True, checkpoint_every=1, **how)
    assert run.result["consensus"] > 0
    # A step of zero length shows what was loaded.
    loaded = train(with_norm(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), workers=2, steps=2, resume=2, **how)
    for name, value in loaded.model.state_dict().items():
        parts = [s["model"][name] for s in states]
        if value.is_floating_point():
            expected = torch.stack([p.double() for p in parts]).mean(0).to(value.dtype)
            assert torch.equal(value, expected), name
    assert loaded.result["consensus"] == 0.0


def test_the_mean_of_states_by_hand() -> None:
    one = {
        "a": torch.tensor([1.0, 2.0]),
        "n": torch.tensor(3),
        "deep": [{"b": torch.tensor(1.0)}, 5],
        "text": "x",
        "none": None,
    }
    two = {
        "a": torch.tensor([3.0, 6.0]),
        "n": torch.tensor(9),
        "deep": [{"b": torch.tensor(4.0)}, 7],
        "text": "y",
        "none": None,
    }
    found = mean([one, two])
    assert found["a"].tolist() == [2.0, 4.0]
    assert found["n"].item() == 3
    assert found["deep"][0]["b"].item() == 2.5
    assert found["deep"][1] == 5
    assert (found["text"], found["none"]) == ("x", None)
    half = mean([torch.tensor([60000.0], dtype=torch.float16)] * 3)
    assert half.dtype == torch.float16
    assert half.item() == 60000.0, "summed in double precision"


def test_a_worker_that_never_took_a_step_has_no_say() -> None:
    """Its optimizer has no state: the momentum of the others counts."""
    other = {"state": {0: {"momentum_buffer": torch.tensor([2.0])}}}
    for states in ([{"state": {}}, other], [other, {"state": {}}], [{"state": {0: {"momentum_buffer": None}}}, other]):
        assert mean(states)["state"][0]["momentum_buffer"].item() == 2.0


def test_random_streams_are_new_and_repeat(tmp_path: Path) -> None:
    import shutil

    how = {"batch": 6, "steps": 2, "out": tmp_path / "run"}
    train(with_norm(), momentum, workers=2, **how)
    found = []
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        more = {"batch": 6, "steps": 4, "out": tmp_path / name, "resume": True}
        found.append(train(with_norm(), momentum, workers=3, **more).result["params_sha256"])
    assert found[0] == found[1]


def test_another_optimizer_is_refused_here_too(tmp_path: Path) -> None:
    train(plain(), momentum, workers=2, steps=2, batch=6, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="optimizer: SGD in the checkpoint, Adam now"):
        train(plain(), adam, workers=3, steps=4, batch=6, out=tmp_path / "run", resume=True)


def test_the_average_of_equal_vectors_is_exact() -> None:
    x = torch.randn(1000)
    for workers in range(1, 12):
        assert torch.equal(mean([x] * workers), x)
    assert len(vector(plain())) == 83
