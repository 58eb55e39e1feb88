"""Every registered method has its card, and the page is what the script makes of them."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_methods_page_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "make_cards.py"))["page"]()
    assert made == (DOCS / "methods.md").read_text(), "run: python docs/make_cards.py"


def test_every_sync_has_a_picture() -> None:
    from equipoise.config import registry

    missing = [e.name for e in registry.entries("sync") if not (DOCS / "pictures" / f"sync-{e.name}.png").exists()]
    assert not missing, "run: python docs/make_pictures.py"
