"""Every command and every snippet in the documents is run.

Python blocks run as they stand, each document's in one namespace and an empty folder. Of shell blocks every line that
starts with `equipoise` runs in the same folder. Blocks after `<!-- not run: reason -->` are left out, with the reason
in the text. Blocks that include a file of `examples/` begin with `{ .python }`: test_examples.py runs those files.

Only the minutes of `plan` are fewer: it takes all that it is given. tests/search has a search that comes to its end.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from equipoise.cli.main import main
from equipoise.config import registry

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^>]+-->\s*)?^( *)```(python|console|toml)\n(.*?)^ *```$", re.M | re.S)


def blocks(document: Path) -> list[tuple[str, str]]:
    """The kind and text of every block that is to run."""
    matches = BLOCK.findall(document.read_text())
    return [(kind, textwrap.dedent(text)) for skip, _, kind, text in matches if not skip]


def commands(text: str) -> list[list[str]]:
    """The arguments of every `equipoise` command in a shell block; a backslash at the end continues a line."""
    lines = text.replace("\\\n", " ").splitlines()
    stripped = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return [hurried(shlex.split(line)[1:]) for line in stripped if line.startswith("equipoise ")]


def hurried(words: list[str]) -> list[str]:
    """The command, with a tenth of a minute for a search."""
    if words[0] != "plan":
        return words
    place = words.index("--minutes") + 1
    assert float(words[place]) > 0.1
    return [*words[:place], "0.1", *words[place + 1 :]]


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d)], ids=lambda path: path.name)
def test_document(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {**registry._registered})  # what a document registers is forgotten
    namespace: dict[str, object] = {"__name__": "__document__"}
    for kind, text in blocks(document):
        if kind == "toml":
            # A block that begins with "# name.toml" is a file that later commands use.
            name = re.match(r"# (\S+\.toml)\n", text)
            assert name, f"a toml block must begin with its file name:\n{text}"
            (tmp_path / name[1]).write_text(text)
        elif kind == "python":
            # A block that begins with "# name.py" is a module that later commands name.
            if module := re.match(r"# (\S+\.py)\n", text):
                (tmp_path / module[1]).write_text(text)
            exec(compile(text, document.name, "exec", dont_inherit=True), namespace)
        else:
            for arguments in commands(text):
                assert main(arguments) == 0, shlex.join(arguments)


def test_blocks_are_found() -> None:
    """The pattern still matches: a document whose blocks it missed would pass unrun."""
    for document in DOCUMENTS:
        fences = re.findall(r"^ *```(?:python|console|toml)$", document.read_text(), re.M)
        assert len(fences) == len(BLOCK.findall(document.read_text())), document.name
    assert len(blocks(ROOT / "README.md")) >= 4


def test_every_included_file_is_an_example() -> None:
    included = {name for d in DOCUMENTS for name in re.findall(r'--8<-- "(examples/[^"]+)"', d.read_text())}
    scripts = {name for name in included if not name.startswith("examples/outside_package/")}  # that has its own test
    assert scripts == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert all((ROOT / name).is_file() for name in included)


def test_links_outside_the_site_resolve() -> None:
    """The site checks its own pages; these files are read on their own, with links to the pages' sources."""
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
        missing = [link for link in links if not link.startswith("http") and not (document.parent / link).exists()]
        assert not missing, document.name
