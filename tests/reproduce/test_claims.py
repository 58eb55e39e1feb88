"""Every experiment runs at a tiny size and measures its quantities; verdicts can be pass and fail."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import reproduce
from equipoise.cli.main import main
from equipoise.core.errors import UserError
from equipoise.reproduce.base import Claim, Expect, Outcome, check
from equipoise.reproduce.claims import CLAIMS, PAPERS

TINY: dict[str, dict[str, Any]] = {
    "order-herding": {"vectors": 128, "rounds": 1},
    "order-convex": {"examples": 32, "epochs": 2, "seeds": 1},
    "order-network": {"limit": 16, "epochs": 2, "seeds": 1},
    "gossip-rate": {},
    "gossip-exact": {"workers": 3, "steps": 5},
    "gossip-rounds": {"most": 3, "target": 1.0},
    "gossip-sorted": {"limit": 64, "steps": 2, "batch": 2, "rates": (0.1,)},
    "gossip-slack": {"limit": 64, "steps": 2, "batch": 2, "rates": (0.1,)},
    "batch-noise": {"dimension": 20, "examples": 512, "tests": 3},
    "batch-quality": {"limit": 128, "epochs": 2, "small": 4, "large": 8, "seeds": 1},
    "batch-floor": {"steps": 8, "seeds": 1},
    "partition-time": {"limit": 240, "epochs": 1, "batch": 15},
    "partition-features": {"limit": 200, "workers": 2, "splits": 2},
    "partition-unequal": {"examples": 400, "splits": 2},
    "partition-saved": {"limit": 256, "epochs": 1, "seeds": 1},
    "pull-weights": {},
    "pull-valleys": {"workers": 2, "steps": 8, "seeds": 1},
    "pull-time": {"limit": 64, "seconds": 0.1, "seeds": 1, "model": "logistic"},
    "pull-flatness": {"limit": 64, "seconds": 0.1, "seeds": 1, "model": "logistic"},
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_an_experiment_measures_what_is_expected(claim: Claim) -> None:
    measured = claim.experiment()(**(claim.small | TINY[claim.name]))
    assert {expect.quantity for expect in (*claim.expects, *claim.variants)} <= set(measured)
    assert all(isinstance(value, (int, float)) for value in measured.values())


def test_the_catalogue_is_consistent() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert {claim.paper for claim in CLAIMS} == set(PAPERS)
    for claim in CLAIMS:
        assert claim.name.startswith(claim.paper)
        assert set(claim.full) <= set(claim.small) | {"data", "limit"}, claim.name
        assert all(expect.low < expect.high for expect in claim.expects)
    assert sum(claim.hours for claim in CLAIMS) < 4, "a full scale that takes days is not run"


def claim_of(*expects: Expect, **more: Any) -> Claim:
    return Claim("order-x", "order", "It holds.", "An experiment.", "order:herding", expects, **more)


@pytest.mark.parametrize(
    ("value", "holds"), [(1.0, True), (2.0, True), (0.99, False), (2.01, False), (math.nan, False), (math.inf, False)]
)
def test_a_range_includes_both_ends(value: float, holds: bool) -> None:
    assert Expect("q", 1.0, 2.0).holds({"q": value}) is holds


def test_one_failed_range_fails_the_claim() -> None:
    claim = claim_of(Expect("a", high=1.0), Expect("b", low=0.0))
    assert Outcome(claim, {"a": 1.0, "b": 0.0}, 0.0).verdict == "pass"
    assert Outcome(claim, {"a": 1.1, "b": 0.0}, 0.0).verdict == "fail"
    assert Outcome(claim, {"a": 1.0}, 0.0).verdict == "fail"
    rows = Outcome(claim, {"a": 1.1, "b": 0.0, "other": 7.0}, 0.0).rows()
    assert rows == [
        ("a", "1.1", "at most 1", "fail"),
        ("b", "0", "at least 0", "pass"),
        ("other", "7", "", ""),
    ]


def test_a_claim_that_fails_says_what_its_variants_do() -> None:
    claim = claim_of(Expect("a", high=1.0), variants=(Expect("b", high=1.0), Expect("c", high=1.0)))
    failed = Outcome(claim, {"a": 1.1, "b": 2.0, "c": 0.5}, 0.0)
    assert failed.verdict == "fail"  # whatever a variant does
    assert failed.instead == "Variants: b: 2 (at most 1: does not hold); c: 0.5 (at most 1: holds)."
    neither = Outcome(claim, {"a": 1.1, "b": 2.0, "c": 2.0}, 0.0)
    assert neither.instead.startswith("No variant is known for which it holds; b: 2 (at most 1: does not hold);")
    assert Outcome(claim_of(*claim.expects), {"a": 2.0}, 0.0).instead == "No variant is known for which it holds."
    passed = Outcome(claim, {"a": 1.0, "b": 2.0, "c": 2.0}, 0.0)
    assert (passed.verdict, passed.instead) == ("pass", "")
    assert ("b", "2", "at most 1", "fail") in failed.rows()


def test_full_scale_asks_for_its_data_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    claim = claim_of(small={"a": 1, "b": 2}, full={"b": 3, "data": "cifar10"})
    assert claim.arguments("small") == {"a": 1, "b": 2}
    assert claim.arguments("full", "here") == {"a": 1, "b": 3, "data": "cifar10", "data_dir": "here"}
    with pytest.raises(UserError, match="--data-dir"):
        claim.arguments("full")
    assert main(["reproduce", "--all", "--scale", "full"]) == 2
    assert "--data-dir" in capsys.readouterr().err


def test_listing_does_not_import_torch() -> None:
    code = (
        "import sys; from equipoise.cli.main import main; main(['reproduce', '--list']);"
        "assert 'torch' not in sys.modules"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert all(claim.name in said.stdout for claim in CLAIMS)


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert [claim.paper for claim in reproduce.chosen(["pull", "gossip-rate"], False)] == ["gossip", *["pull"] * 4]
    assert len(reproduce.chosen([], True)) == len(CLAIMS)
    refused = {
        "": "--all",
        "--all pull": "--all",
        "gosip": "did you mean 'gossip'",
        "pull --scale huge": "small or full",
    }
    for words, why in refused.items():
        assert main(["reproduce", *words.split()]) == 2
        assert why in capsys.readouterr().err


def test_text_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "gossip-rate", "--write", str(tmp_path / "page.md")]) == 0
    said = capsys.readouterr().out
    assert "PASS" in said
    assert "at most 0.15" in said
    page = " ".join((tmp_path / "page.md").read_text().split())
    assert "**1 of 1 hold**" in page
    assert "`equipoise reproduce gossip-rate`" in page
    assert main(["reproduce", "gossip-rate", "pull-weights", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], first["verdict"], second["name"]) == ("gossip-rate", "pass", "pull-weights")
    assert all(expect["holds"] for expect in first["expected"])


def test_a_page_from_earlier_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "pull-weights", "--json"]) == 0
    earlier, page = tmp_path / "earlier.json", tmp_path / "page.md"
    printed = capsys.readouterr().out
    earlier.write_text(re.sub(r'"date": "[^"]*"', '"date": "2026-02-03"', printed))
    assert main(["reproduce", "gossip-rate", "--earlier", str(earlier), "--write", str(page)]) == 0
    text = " ".join(page.read_text().split())
    assert "**2 of 2 hold**" in text
    assert "`equipoise reproduce gossip-rate pull-weights`" in text
    assert "## Latest run 03 February 2026 to " in text
    assert main(["reproduce", "--earlier", str(earlier), "--write", str(page)]) == 0  # nothing is run
    assert "**1 of 1 hold**" in page.read_text()
    assert "03 February 2026, `equipoise" in page.read_text()
    refused = {
        "scale": printed.replace('"scale": "small"', '"scale": "full"'),
        "sizes": printed.replace("workers 4", "workers 5"),
        "quantity": printed.replace("spread of weight", "sum of weight"),
        "not what": "[1]",
        "day": re.sub(r'"date": "[^"]*"', '"date": "yesterday"', printed),
        "no claim": printed.replace('"pull-weights"', '"pull-x"'),
    }
    for what, content in refused.items():
        earlier.write_text(content)
        assert main(["reproduce", "--earlier", str(earlier), "--write", str(page)]) == 2, what
        assert "run it again" in capsys.readouterr().err, what


def test_all_runs_what_is_not_among_the_earlier_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": c.name, "seconds": 1.0, "scale": "small", "sizes": c.sizes("small")}
        | {"measured": {e.quantity: 0.0 for e in (*c.expects, *c.variants)}}
        for c in CLAIMS
        if c.name != "gossip-rate"
    ]
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(rows))
    assert main(["reproduce", "--all", "--earlier", str(earlier), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err.split() == ["gossip-rate", "..."]
    assert [row["name"] for row in json.loads(said.out)] == [claim.name for claim in CLAIMS]


def test_check_compares_the_measured_quantity() -> None:
    quantity = "accelerated / plain rounds on a ring of 16"
    for high, verdict in ((0.9, "pass"), (0.01, "fail")):
        claim = Claim("gossip-x", "gossip", "", "", "gossip:rate", (Expect(quantity, high=high),), {"rings": (8, 16)})
        outcome = check(claim)
        assert outcome.verdict == verdict
        assert 0.1 < outcome.measured[quantity] < 0.5  # 12 rounds against 45
