"""The site builds without a network, and every link, anchor and asset of the built pages exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """The anchors of a page, what it loads, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.formulas = self.arrays = self.rows = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        self.formulas += tag == "math"
        self.arrays += tag == "mtable"
        self.rows += tag == "mtr"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.assets.append(given["href"])
        elif "src" in given:
            self.assets.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A network namespace without devices (where the system allows one) proves that none is needed."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    isolated = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") and subprocess.run([*isolated, "true"], capture_output=True).returncode == 0:
        command = [*isolated, *command]
    build = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def broken(pages: dict[Path, Page], site: Path) -> Iterator[str]:
    for path, page in pages.items():
        for link in [*page.links, *page.assets]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            start = site if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            anchors = pages[target].anchors if target in pages else set()
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                yield f"{path.relative_to(site)}: {link}"


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#gone">x</a><a href="c.html">y</a><img src="d.png">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#top">fine</a><a href="https://elsewhere.org">not ours</a>')
    pages = {path: Page(path.read_text()) for path in tmp_path.glob("*.html")}
    assert sorted(broken(pages, tmp_path)) == ["a.html: b.html#gone", "a.html: c.html", "a.html: d.png"]


def test_every_internal_link_and_anchor_resolves(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 35
    # The page for unknown addresses links from the root of the host.
    assert not list(broken({path: page for path, page in pages.items() if path.name != "404.html"}, site))


def test_no_page_loads_anything_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    outside = [a for page in pages.values() for a in page.assets if urlsplit(a).netloc]
    styles = [
        text
        for path in site.rglob("*.css")
        for text in re.findall(r"(?:url\(|@import)[^;)]*//[^;)]*", path.read_text())
    ]
    assert not outside
    assert not [text for text in styles if "data:" not in text]


def test_equations_are_mathml(site: Path, pages: dict[Path, Page]) -> None:
    source = (ROOT / "docs" / "methods" / "sync.md").read_text()
    assert pages[site / "methods" / "sync.html"].formulas >= source.count("$$") // 2 > 20
    rows = source.count(" \\\\\n")
    assert pages[site / "methods" / "sync.html"].rows == rows + pages[site / "methods" / "sync.html"].arrays
    left = [path.name for path in pages if re.search(r"\\\(|\\\[|arithmatex|\\begin\{array\}", path.read_text())]
    assert not left


def test_reference_documents_the_public_names(pages: dict[Path, Page]) -> None:
    import equipoise

    axes = ("batch", "order", "partition", "period", "signal", "sync", "topology", "wire", "features", "__version__")
    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    public = {f"equipoise.{name}" for name in equipoise.__all__ if name not in axes}
    assert public <= anchors, public - anchors
