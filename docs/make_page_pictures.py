"""Takes docs/pictures/demo.png and report.png: what a browser shows of the demo's page and of a report on two runs.

python docs/make_page_pictures.py [RUNS]    # needs Chromium; runs that are in RUNS already are not repeated
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from equipoise.cli.main import main  # noqa: E402
from tests.report.browser import browser  # noqa: E402

RUN = "train --virtual --workers 4 --epochs 6 --evaluate-every 0.25 --quiet"


def make(folder: Path) -> None:
    pictures = ROOT / "docs" / "pictures"
    os.chdir(folder)
    commands = [
        "demo --out runs/demo-1 --quiet",
        *([f"{RUN} --out even"] if not Path("even").exists() else []),
        *([f"{RUN} --out sorted --partition sorted --sync detag"] if not Path("sorted").exists() else []),
        "report even sorted --out both.html",
    ]
    for command in commands:
        assert main(command.split()) == 0, command
    with browser(folder / "browser") as tab:
        for page, name, width, height in (
            (Path("runs/demo-1/report.html"), "demo.png", 1180, 1340),
            (Path("both.html"), "report.png", 960, 720),
        ):
            tab.become(width=width, height=height)
            tab.open(page.resolve())
            tab.screenshot(pictures / name)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as place:
            make(Path(place))
