"""Every registered method has its card, and the generated pages are up to date."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from equipoise.config import registry

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "hooks"))
import equations  # noqa: E402


def test_generated_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "make_cards.py"))["pages"]()
    stale = [name for name, text in pages.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    assert not stale, "run: python docs/make_cards.py"


def test_every_method_has_a_card() -> None:
    for entry in registry.entries():
        if entry.axis not in ("data", "model"):
            assert f"\n## {entry.name}\n" in (DOCS / "methods" / f"{entry.axis}.md").read_text()


def test_every_sync_says_what_happens_when_workers_come_and_go() -> None:
    page = (DOCS / "methods" / "sync.md").read_text()
    for entry in registry.entries("sync"):
        card = page.partition(f"\n## {entry.name}\n")[2].partition("\n## ")[0]
        assert "- **Workers come and go:** " in card, entry.name


def test_every_sync_has_a_picture() -> None:
    missing = [e.name for e in registry.entries("sync") if not (DOCS / "pictures" / f"sync-{e.name}.png").exists()]
    assert not missing, "run: python docs/make_pictures.py"


@pytest.mark.parametrize(
    ("plain", "latex"),
    [
        ("x_i <- sum_j W_ij x_j", r"x_{i} & \leftarrow  \sum_{j} \, W_{ij}\, x_{j}"),
        ("s = +1 if <S, v> <= 0 else -1", r"s & = +1\; \text{if}\; \langle S, v\rangle  \le  0\; \text{else}\; -1"),
        ("r <= 2^-8 |e|", r"r & \le  2^{-8} \lvert e \rvert"),
        ("B = tr S / |G|^2", r"B & = \operatorname{tr}\, S / \lvert G \rvert^{2}"),
        ("c <- c + pull (mean of x - c)", r"c & \leftarrow  c +\; \text{pull}\; (\text{mean of}\; x - c)"),
        ("y_i <- y~_i - s_i(before)", r"y_{i} & \leftarrow  \tilde{y}_{i} - s_{i}^{\text{before}}"),
        ("f = sqrt(sum_{v in A} x_v)", r"f & = \sqrt{\sum_{v \in  A} \, x_{v}}"),
    ],
)
def test_plain_text_equation_becomes_latex(plain: str, latex: str) -> None:
    assert equations.latex([plain]) == f"\\begin{{array}}{{rl}}\n{latex}\n\\end{{array}}"


def test_labels_remarks_and_several_equations_in_a_line() -> None:
    lines = ["    at a round:   a <- b,   c <- d     as before", "    later:        c <- a"]
    assert equations.latex(lines).splitlines()[1:-1] == [
        r"\text{at a round:}\quad  & a & \leftarrow  b, \\",
        r" & c & \leftarrow  d & \quad \text{as before} \\",
        r"\text{later:}\quad  & c & \leftarrow  a",
    ]


def test_markdown_tells_equations_code_arguments_and_prose_apart() -> None:
    text = equations.markdown(
        "Where a < b.\n\n    x <- y\n\nThen\n\n    run.step(x)\n\nclip: the norm\n    of it\nReference: A, B."
    )
    assert "Where a &lt; b." in text
    assert "$$\n\\begin{array}{rl}\nx & \\leftarrow  y\n\\end{array}\n$$" in text
    assert "```python\nrun.step(x)\n```" in text
    assert "- **clip**: the norm\n    of it" in text
    assert "\n\n*Reference:* A, B." in text
