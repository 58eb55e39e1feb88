"""Every command and every snippet in the documents is run.

Python blocks run as they stand, each document's in one namespace and an empty folder. Of shell blocks every line that starts with
`equipoise` runs in the same folder. Blocks behind `<!-- not run: reason -->` are left out, and the reason is in the text.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from equipoise.cli.main import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^>]+-->\s*)?^( *)```(python|console|toml)\n(.*?)^ *```$", re.M | re.S)


def blocks(document: Path) -> list[tuple[str, str]]:
    found = BLOCK.findall(document.read_text())
    return [(kind, textwrap.dedent(text)) for skipped, _, kind, text in found if not skipped]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_document(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__document__"}
    for kind, text in blocks(document):
        if kind == "toml":
            # A block that begins with "# name.toml" is a file that later commands use.
            name = re.match(r"# (\S+\.toml)\n", text)
            assert name, f"a toml block must begin with its file name:\n{text}"
            (tmp_path / name[1]).write_text(text)
        elif kind == "python":
            exec(compile(text, document.name, "exec", dont_inherit=True), namespace)
        else:
            for line in text.splitlines():
                command = line.removeprefix("$ ").split("  #")[0].strip()
                if command.startswith("equipoise "):
                    assert main(shlex.split(command)[1:]) == 0, command


def test_every_document_has_something_to_run_or_says_why_not() -> None:
    assert blocks(ROOT / "README.md")
    assert blocks(ROOT / "CONTRIBUTING.md")
